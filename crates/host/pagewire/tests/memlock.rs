//! The memory that zero-copy sends hold is bounded for all hosts of a process together, by the
//! user's limit on locked memory. One test, because the limit is the process's.

use std::error::Error;

use pagewire::{Host, Pair, Sent};
use rustix::process::{Resource, getrlimit, setrlimit};

#[test]
fn hosts_share_the_users_limit_on_locked_memory() -> Result<(), Box<dyn Error>> {
    let limit = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, rustix::process::Rlimit { current: Some(64 << 10), ..limit })?;
    let (left, right) = Pair::new()?;
    let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
    let listener = server.listen("10.0.0.1:9000")?;
    let near = client.connect("10.0.0.1:9000")?;
    let (far, _) = listener.accept()?;
    for end in [&near, &far] {
        end.set_zerocopy(true)?;
    }
    // 16 pages: those that the bytes fill, and one at either end.
    let error = near.send_zc(vec![0; 61_440]).unwrap_err();
    assert!(is_limit(&error), "{error}");
    assert_eq!(near.send_zc(vec![0; 61_439])?, Sent { bytes: 61_439, id: Some(0) });
    let error = far.send_zc(vec![0; 1]).unwrap_err();
    assert!(is_limit(&error), "the user's other host holds them: {error}");
    // Memory that was let go can be held again.
    let mut got = 0;
    while got < 61_439 {
        got += far.recv_chunks(1 << 20)?.len();
    }
    assert_eq!(near.wait_completion()?.map(|done| done.ids), Some(0..=0));
    assert_eq!(far.send_zc(vec![0; 1])?.id, Some(0));
    Ok(())
}

fn is_limit(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    inner == Some(&pagewire::services::Error::TooManyPagesHeld)
}
