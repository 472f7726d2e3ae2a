//! An address that a socket is bound to before it listens or connects.

use pagewire_stack::PortReservation;

use crate::world::Here;

/// A reserved address. Its drop gives the address back.
pub(crate) struct Reserved {
    pub(crate) here: Here,
    pub(crate) id: PortReservation,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Gone: so is the reservation.
        let _ = self.here.with_stack(|stack, _| stack.reservations().release(self.id));
    }
}
