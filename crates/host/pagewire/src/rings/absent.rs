//! In place of the rings where the feature `rings` is off: a host has none.

pub(crate) mod serve {
    use std::task::Waker;
    use std::time::Duration;

    use pagewire_mem::Instant;
    use pagewire_stack::{Event, Stack};

    /// Never used: nothing is stuck.
    pub(crate) const STUCK_RETRY: Duration = Duration::MAX;

    /// No engines.
    #[derive(Default)]
    pub(crate) struct Attachments;

    impl Attachments {
        pub(crate) fn is_empty(&self) -> bool {
            true
        }

        pub(crate) fn handle_event(&mut self, _: Event) {}

        pub(crate) fn look_at_all(&mut self) {}

        pub(crate) fn serve(&mut self, _: Instant, _: &mut Stack, _: &mut Vec<Waker>) -> bool {
            false
        }

        /// There is no work.
        pub(crate) fn arm(&mut self) -> bool {
            true
        }

        pub(crate) fn is_stuck(&self) -> bool {
            false
        }
    }
}
