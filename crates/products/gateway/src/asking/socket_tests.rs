//! A policy behind a Unix socket, and programs that behave badly.

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use super::SocketPolicy;
use crate::asking::{Opinion, Policy};
use crate::limits::JUDGE_QUEUE;
use crate::request::{Ask, GuestId, Protocol, Verdict};

struct Bell(mpsc::Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

type Question = Pin<Box<dyn Future<Output = Opinion> + Send>>;

/// The opinion, once there is one.
fn wait(mut question: Question) -> Opinion {
    let (send, bell) = channel();
    let waker = Waker::from(Arc::new(Bell(send)));
    loop {
        match question.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(opinion) => return opinion,
            Poll::Pending => bell.recv().unwrap(),
        }
    }
}

fn ask() -> Ask {
    let (from, to) = ("10.0.2.15:4000".parse().unwrap(), "203.0.113.1:443".parse().unwrap());
    Ask::new(GuestId(1), Protocol::Tcp, from, to)
}

fn start() -> (SocketPolicy, UnixStream, mpsc::Receiver<()>) {
    let (near, far) = UnixStream::pair().unwrap();
    let (send, ended) = channel();
    (SocketPolicy::over(near, move || send.send(()).unwrap()).unwrap(), far, ended)
}

#[test]
fn answers_come_in_any_order_and_the_first_of_each_counts() {
    let (policy, mut far, _ended) = start();
    let (one, other) = (policy.decide(1, ask()), policy.decide(2, ask()));
    let mut lines = BufReader::new(far.try_clone().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains(r#""id":1,"#));
    assert!(lines.next().unwrap().unwrap().contains(r#""id":2,"#));
    far.write_all(
        b"garbage\n\xff\n{\"id\":9,\"verdict\":\"allow\"}\n{\"id\":2,\"verdict\":\"drop\"}\n",
    )
    .unwrap();
    far.write_all(b"{\"id\":2,\"verdict\":\"allow\"}\n{\"id\":1,\"verdict\":\"rules\"}\n").unwrap();
    assert_eq!(wait(one), Opinion::rules());
    assert_eq!(wait(other), Opinion::verdict(Verdict::Drop));
    assert!(policy.shared.lock().open.is_empty());
}

#[test]
fn after_the_end_of_the_connection_nobody_knows() {
    let (policy, far, ended) = start();
    let open = policy.decide(1, ask());
    drop(far);
    assert_eq!(wait(open), Opinion::otherwise());
    ended.recv().unwrap();
    assert_eq!(wait(policy.decide(2, ask())), Opinion::otherwise());
    drop(policy);
    assert!(ended.recv().is_err(), "the end is told once");
}

#[test]
fn a_program_that_does_not_read_costs_a_queue_and_blocks_nobody() {
    let (policy, _far, _ended) = start();
    // More than the queue and the socket's buffers take.
    let questions = (0..JUDGE_QUEUE as u64 * 8).map(|flow| policy.decide(flow, ask()));
    let questions: Vec<Question> = questions.collect();
    assert_eq!(policy.shared.lock().open.len(), questions.len());
    drop(questions);
    assert!(policy.shared.lock().open.is_empty(), "what nobody waits for is forgotten");
}

#[test]
fn a_dropped_policy_closes_the_connection_and_says_nothing() {
    let (policy, far, ended) = start();
    drop(policy);
    assert_eq!(BufReader::new(far).lines().count(), 0);
    assert!(ended.recv().is_err());
}
