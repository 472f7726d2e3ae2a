//! Sockets that are bound to a link (`SO_BINDTODEVICE`, `SO_BINDTOIFINDEX`), by name or number.

use pagewire_stack::limits::LINK_NAME_BYTES;
use pagewire_stack::{LinkId, SocketOption, Stack, option};

use super::{Done, Value};
use crate::backend::Backend;
use crate::descriptors::SocketCall;
use crate::file::socket::State;
use crate::{Errno, errno, field};

impl<B: Backend> SocketCall<'_, B> {
    /// The name ends at a zero or with `value`; a longer one is cut, as in Linux. No name: no link.
    pub(super) fn bind_to_name(&self, value: &[u8]) -> Done {
        let value = &value[..value.len().min(LINK_NAME_BYTES)];
        let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
        self.bind_to_link(name.is_empty(), |stack, link| {
            stack.link_name(link).is_some_and(|own| own.as_bytes() == name)
        })
    }

    /// 0: no link.
    pub(super) fn bind_to_number(&self, value: &[u8]) -> Done {
        let number =
            u32::try_from(i32::from_ne_bytes(field(value, 0)?)).map_err(|_| Errno::INVAL)?;
        self.bind_to_link(number == 0, |_, link| link.scope_id() == number)
    }

    fn bind_to_link(&self, none: bool, is_it: impl Fn(&Stack, LinkId) -> bool) -> Done {
        let mut state = self.lock();
        let (id, reservation) = (state.stage.id(), state.reservation);
        let option = self.runtime.with(|stack, _| {
            let found = stack.links().find(|&link| is_it(stack, link));
            let link = if none { None } else { Some(found.ok_or(Errno::NODEV)?) };
            let option = SocketOption::Link(link);
            if let Some(id) = id {
                stack.set_option(id, option).map_err(errno)?;
            }
            if let Some(reservation) = reservation {
                stack.reservations().bind_to_link(reservation, link).map_err(errno)?;
            }
            Ok(option)
        })?;
        state.options.set(option);
        Ok(())
    }

    /// The name with a zero at its end; nothing for a socket that is bound to no link.
    ///
    /// # Errors
    /// `EINVAL` where the longest name has no room, `ENODEV` if the link was removed.
    pub(super) fn link_name(&self, state: &State, room: usize) -> Value {
        let Some(link) = state.options.value(option::Link) else { return Ok(Vec::new()) };
        if room <= LINK_NAME_BYTES {
            return Err(Errno::INVAL);
        }
        let name = self.runtime.with(|stack, _| stack.link_name(link)).ok_or(Errno::NODEV)?;
        Ok(name.bytes().chain([0]).collect())
    }
}
