//! Bodies whose data leaves by reference.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pagewire_sockets::by_reference;

/// A body whose data is [noted](by_reference): a server over a stream of Pagewire sends pieces of 2 KiB or
/// more without a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByReference<B>(pub B);

impl<B: Body<Data = Bytes> + Unpin> Body for ByReference<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.0).poll_frame(cx);
        frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(by_reference))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
