//! A host's program, beside its state in the world.

use std::future::Future;
use std::rc::Rc;

use tracing::Span;

use crate::Result;
use crate::agenda::SourceId;
use crate::hosts::HostOptions;
use crate::runtime::{HostRuntime, Program};
use crate::watch::{Blocked, Watch};
use crate::world::HostHandle;

/// What a host runs.
pub(crate) enum Software {
    /// A client's future.
    Once(Option<Program>),
    /// A host's, for each start.
    Again(Rc<dyn Fn() -> Program>),
}

impl Software {
    /// Whether it can start once more.
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

/// Calls tokio for a host, in a way that code of its tasks may run: inside of the host, watched, and
/// without the world's lock. `Some`: it blocked its thread.
pub(crate) fn watched<R>(
    here: HostHandle,
    watch: &Watch,
    span: &Span,
    call: impl FnOnce() -> R,
) -> (R, Option<Blocked>) {
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
    /// The run of the simulation waits for its end.
    pub(crate) client: bool,
    pub(crate) done: bool,
    pub(crate) runtime: Option<HostRuntime>,
    /// Its tasks did not run yet since it was started.
    pub(crate) fresh: bool,
    /// What the host's clock showed when the runtime was built.
    pub(crate) built: u64,
    /// How far it is known to have no timer, while its next one is not known: in `Sim::clean`.
    pub(crate) clean: SourceId,
    pub(crate) span: Span,
}
