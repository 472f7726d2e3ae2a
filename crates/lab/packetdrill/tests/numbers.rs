//! Numbers of descriptors that the process gives away again. They belong to the whole process, so
//! this test has one of its own: beside others, somebody else takes the number first.

#[allow(dead_code, unreachable_pub, reason = "what a host offers to tests")]
mod host;

use host::{Host, Mode, Segment, ok};

#[test]
fn descriptors_can_be_closed_by_the_c_library_before_the_stack_is_let_go() {
    let mut host = Host::new(Mode::V4);
    let (fd, next) = host.accepted();
    // SAFETY: packetdrill does the same at the end of a script.
    ok(unsafe { libc::close(fd) });
    host.inject(&Segment { rst: true, ..next });
    // A number that somebody else has by now must stay open.
    // SAFETY: no pointers.
    let theirs = ok(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0) });
    assert_eq!(theirs, fd, "the lowest free number");
    host.free();
    // SAFETY: ours to close.
    ok(unsafe { libc::close(theirs) });
}
