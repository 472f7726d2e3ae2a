//! tokio's budget: a task that always finds something to do lets others run.

#[cfg(feature = "tokio")]
pub(crate) use tokio::task::coop::poll_proceed;

/// Without tokio there is no budget.
#[cfg(not(feature = "tokio"))]
pub(crate) fn poll_proceed(_: &mut std::task::Context<'_>) -> std::task::Poll<Unlimited> {
    std::task::Poll::Ready(Unlimited)
}

#[cfg(not(feature = "tokio"))]
pub(crate) struct Unlimited;

#[cfg(not(feature = "tokio"))]
impl Unlimited {
    pub(crate) fn made_progress(&self) {}
}
