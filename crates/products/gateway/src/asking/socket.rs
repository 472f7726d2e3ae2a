//! [`SocketPolicy`], a policy that asks another program by a Unix socket.

use std::collections::HashMap;
use std::future::Future;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use super::lines::{Lines, read_answer, write_question};
use super::{Opinion, Policy};
use crate::limits::JUDGE_QUEUE;
use crate::request::Ask;

/// Asks a program that listens on a Unix socket: one JSON object a line, answers in any order. All guests share one
/// connection, which two threads write and read.
///
/// Lines that are no answer, second answers and those to unknown questions mean nothing. Once the connection has ended,
/// every question gets [`Opinion::otherwise`]; the connection is not opened again.
#[derive(Debug)]
pub struct SocketPolicy {
    shared: Arc<Shared>,
    lines: SyncSender<String>,
    last: AtomicU64,
    stream: UnixStream,
}

#[derive(Debug, Default)]
struct Shared {
    questions: Mutex<Questions>,
}

#[derive(Debug, Default)]
struct Questions {
    /// The connection has ended.
    over: bool,
    /// Questions without an answer, as many as futures exist.
    open: HashMap<u64, State>,
}

#[derive(Debug)]
enum State {
    /// Nobody has polled the future since.
    Asked,
    Polled(Waker),
    Answered(Opinion),
}

impl SocketPolicy {
    /// Connects to the program. `on_end` is called once, when the connection ends before the policy is dropped.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(path: &Path, on_end: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        Self::over(UnixStream::connect(path)?, on_end)
    }

    /// As [`connect`](Self::connect), with a connection that exists.
    ///
    /// # Errors
    /// The system's.
    pub fn over(stream: UnixStream, on_end: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let (lines, queue) = sync_channel(JUDGE_QUEUE);
        let (reads, writes) = (stream.try_clone()?, stream.try_clone()?);
        let reader = Arc::clone(&shared);
        thread::Builder::new().name("pagewire-judge".into()).spawn(move || {
            read(reads, &reader);
            if !std::mem::replace(&mut reader.lock().over, true) {
                on_end();
            }
            reader.end();
        })?;
        thread::Builder::new().name("pagewire-ask".into()).spawn(move || write(writes, &queue))?;
        Ok(Self { shared, lines, last: AtomicU64::new(0), stream })
    }
}

impl Drop for SocketPolicy {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        // Both threads end.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Reads answers until the connection ends.
fn read(mut stream: UnixStream, shared: &Shared) {
    let (mut lines, mut room) = (Lines::default(), [0; 4096]);
    loop {
        match stream.read(&mut room) {
            Ok(0) => return,
            Ok(n) => lines.take(room.get(..n).unwrap_or_default(), |line| {
                if let Some((id, opinion)) = read_answer(line) {
                    shared.answer(id, opinion);
                }
            }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Writes questions until the connection ends, or the policy is dropped.
fn write(mut stream: UnixStream, queue: &Receiver<String>) {
    for line in queue {
        if stream.write_all(line.as_bytes()).is_err() {
            // The reader ends, too.
            let _ = stream.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, id: u64, opinion: Opinion) {
        let mut questions = self.lock();
        let Some(state) = questions.open.get_mut(&id) else { return };
        if matches!(state, State::Answered(_)) {
            return;
        }
        let before = std::mem::replace(state, State::Answered(opinion));
        drop(questions);
        if let State::Polled(waker) = before {
            waker.wake();
        }
    }

    /// Wakes all that wait for an answer.
    fn end(&self) {
        let open: Vec<u64> = self.lock().open.keys().copied().collect();
        open.into_iter().for_each(|id| self.answer(id, Opinion::otherwise()));
    }
}

impl Policy for SocketPolicy {
    fn decide(&self, flow: u64, ask: Ask) -> Pin<Box<dyn Future<Output = Opinion> + Send>> {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut questions = self.shared.lock();
        if questions.over {
            return Box::pin(std::future::ready(Opinion::otherwise()));
        }
        questions.open.insert(id, State::Asked);
        drop(questions);
        let waits = Waits { id, shared: Arc::clone(&self.shared) };
        // The program does not read: the time of the question will be over.
        let _ = self.lines.try_send(write_question(id, flow, &ask));
        Box::pin(waits)
    }
}

/// Waits for the answer to a question; forgets the question on drop.
struct Waits {
    id: u64,
    shared: Arc<Shared>,
}

impl Future for Waits {
    type Output = Opinion;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Opinion> {
        let mut questions = self.shared.lock();
        match questions.open.get_mut(&self.id) {
            Some(State::Answered(opinion)) => Poll::Ready(opinion.clone()),
            Some(state) => {
                *state = State::Polled(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(Opinion::otherwise()),
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.shared.lock().open.remove(&self.id);
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
