//! What tasks said when they panicked: a runtime catches their panics, and nobody may look at the
//! result.

use std::cell::RefCell;
use std::fmt;
use std::panic::PanicHookInfo;
use std::sync::Once;

use crate::world::Here;

/// A panic of a task.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) text: String,
    place: Option<String>,
}

impl Note {
    /// Whether it is tokio's, for a socket in a runtime that has none.
    pub(crate) fn is_real_socket(&self) -> bool {
        self.text.contains("IO is disabled")
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match &self.place {
            Some(place) => write!(f, " ({place})"),
            None => Ok(()),
        }
    }
}

thread_local! {
    static NOTES: RefCell<Vec<Note>> = const { RefCell::new(Vec::new()) };
}

/// Notes the panics of simulated tasks from now on; everything else goes on as before.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            note(info);
            before(info);
        }));
    });
}

fn note(info: &PanicHookInfo<'_>) {
    if Here::get().is_err() {
        return;
    }
    let text = info.payload_as_str().unwrap_or("something that is no text").to_owned();
    let place = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
    let _ = NOTES.try_with(|notes| {
        if let Ok(mut notes) = notes.try_borrow_mut() {
            notes.push(Note { text, place });
        }
    });
}

/// The panics on this thread since the last call.
pub(crate) fn take() -> Vec<Note> {
    NOTES.try_with(|notes| std::mem::take(&mut *notes.borrow_mut())).unwrap_or_default()
}
