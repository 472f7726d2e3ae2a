//! What a simulated connection can tell besides.

use std::io;

use pagewire_stack::TcpInfo;

use super::tcp::TcpStream;

/// What a simulated connection has besides what tokio's has.
pub trait TcpStreamExt {
    /// The state of the connection: windows, round-trip times, retransmissions.
    fn info(&self) -> io::Result<TcpInfo>;

    /// Resets the connection: the peer sees `ConnectionReset`.
    fn abort(&self) -> io::Result<()>;
}

impl TcpStreamExt for TcpStream {
    fn info(&self) -> io::Result<TcpInfo> {
        self.socket.with(|stack, now| Ok(stack.as_tcp(self.socket.id)?.info_at(now)))
    }

    fn abort(&self) -> io::Result<()> {
        self.socket.with(|stack, now| {
            stack.abort(now, self.socket.id);
            Ok(())
        })
    }
}
