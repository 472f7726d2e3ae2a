//! A [`Machine`]: the tasks' side of a host, beside its kernel's side in the world.

use std::future::Future;
use std::rc::Rc;

use tracing::Span;

use crate::Result;
use crate::events::queue::SourceId;
use crate::host::selectors::HostOptions;
use crate::host::world::HostHandle;
use crate::runtime::tokio_runtime::{HostRuntime, Program};
use crate::runtime::watchdog::{BlockedThread, Watch};

pub(crate) enum Software {
    /// The future of a client, which can run once.
    Once(Option<Program>),
    /// A closure that makes a future for each start.
    Again(Rc<dyn Fn() -> Program>),
}

impl Software {
    pub(crate) fn can_start(&self) -> bool {
        !matches!(self, Self::Once(None))
    }

    pub(crate) fn again<F, Fut>(software: F) -> Self
    where
        F: Fn() -> Fut + 'static,
        Fut: Future<Output = Result> + 'static,
    {
        Self::Again(Rc::new(move || Box::pin(software())))
    }
}

/// Calls tokio for a host, so that code of the host's tasks may run: with the host as the current one, under the
/// watchdog, and without the world's lock. `Some`: a task blocked its thread.
pub(crate) fn watched<R>(
    here: HostHandle,
    watch: &Watch,
    span: &Span,
    call: impl FnOnce() -> R,
) -> (R, Option<BlockedThread>) {
    let id = here.host.id;
    let before = HostHandle::set(Some(here));
    watch.begin(id);
    let result = span.in_scope(call);
    let blocked = watch.end();
    let here = HostHandle::set(before);
    #[cfg(feature = "subscriber")]
    here.iter().for_each(|here| here.world.write_logs());
    drop(here);
    (result, blocked)
}

/// One host's program and its tasks, beside its `HostState`.
pub(crate) struct Machine {
    pub(crate) software: Software,
    pub(crate) options: HostOptions,
    /// The run of the simulation waits for the end of this program.
    pub(crate) client: bool,
    pub(crate) done: bool,
    pub(crate) runtime: Option<HostRuntime>,
    /// The tasks did not run yet since the start.
    pub(crate) just_started: bool,
    /// The reading of the host's clock when the runtime was built.
    pub(crate) built_at: u64,
    /// The entry of `Sim::idle`: up to which time the host is known to have no timer.
    pub(crate) idle: SourceId,
    pub(crate) span: Span,
}
