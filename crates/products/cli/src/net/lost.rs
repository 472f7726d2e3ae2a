//! The loss of a device, such as a deleted tap: a command reports it and ends or, with `--wait-for-device`, waits
//! for another device of that name. `serve` and `proxy` check it regularly.

use std::io;

use pagewire::Link;
use pagewire::LinkId;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::args::{NetLink, NetOptions};
use crate::failure::{Failure, reason};
use crate::net::{self, OpenNetwork};

impl OpenNetwork {
    /// Called regularly by a command that runs until it is asked to stop.
    ///
    /// # Errors
    /// There is no device any more, and none is to be waited for.
    pub(crate) fn check_device(&mut self, options: &NetOptions) -> Result<(), Failure> {
        let up = self.host.shards().iter().try_for_each(pagewire::Host::check);
        let Err(error) = up else { return Ok(()) };
        let name = net::tap_name(options);
        let why = match options.link {
            NetLink::Tap if !exists(name) => format!("the tap {name} was deleted"),
            _ => reason(&error),
        };
        if !options.wait_for_device {
            let hint = match options.link {
                NetLink::Tap => "; with --wait-for-device this waits for another of its name",
                _ => "",
            };
            return Err(Failure::Failed(why + hint));
        }
        if let Some(link) = self.link.take() {
            crate::failure::complain!("pagewire: {why}; waiting for {name}");
            self.host.remove_link(link);
        }
        // Tried again: the device may exist before its queues.
        if !exists(name) {
            return Ok(());
        }
        match self.link_again(options) {
            Ok(link) => {
                crate::failure::complain!("pagewire: {name} is back");
                self.warn_of_idle_cores();
                (self.link, self.waits_because) = (Some(link), None);
            }
            Err(Failure::Failed(why) | Failure::Usage(why) | Failure::Interrupted(why)) => {
                self.wait_on(name, why);
            }
        }
        Ok(())
    }

    /// Makes the present device the host's link.
    fn link_again(&mut self, options: &NetOptions) -> Result<LinkId, Failure> {
        let queues = net::tap_queues(options, self.host.shards().len(), self.memory)?;
        self.one_receives = queues.one_receives;
        let queues = self.report.wrappers_again(options.fault).around_all(queues.devices)?;
        let link = self.host.add_link(queues, |link| {
            let link = options.addr.iter().fold(link, Link::address);
            options.gateway.iter().fold(link, Link::gateway)
        })?;
        Ok(link)
    }

    /// Reports a device that cannot be used yet, once for each reason.
    fn wait_on(&mut self, name: &str, why: String) {
        if self.waits_because.as_ref() != Some(&why) {
            crate::failure::complain!("pagewire: {why}; still waiting for {name}");
            self.waits_because = Some(why);
        }
    }
}

/// Whether there is a network device of this name.
fn exists(name: &str) -> bool {
    let index = || -> io::Result<u32> {
        let flags = SocketFlags::CLOEXEC;
        let any = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        Ok(netdevice::name_to_index(&any, name)?)
    };
    index().is_ok()
}
