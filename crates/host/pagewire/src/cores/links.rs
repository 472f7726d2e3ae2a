//! Links that a host of several cores gets or loses while it runs.

use std::io;

use pagewire_device::Device;
use pagewire_stack::LinkId;

use super::Cores;
use super::builder::spread;
use crate::error::StartError;
use crate::link::Link;

/// # Links
impl Cores {
    /// Adds a link while the host runs: on queues of one device, for a core each, or on a device with one queue. `with`
    /// gives the link of each core the same settings.
    ///
    /// # Errors
    /// Those of [`CoresBuilder::start`](crate::CoresBuilder::start); nothing has changed then.
    pub fn add_link<D: Device + 'static>(
        &self,
        queues: impl IntoIterator<Item = D>,
        with: impl Fn(Link) -> Link,
    ) -> Result<LinkId, StartError> {
        let queues: Vec<_> = queues.into_iter().map(|q| Box::new(q) as Box<dyn Device>).collect();
        if queues.is_empty() {
            return Err(StartError::NoDevice);
        }
        let links = spread(queues, self.shards().len())?.map(|device| {
            let mut link = with(Link::new(device));
            Ok((link.config()?, link.device))
        });
        let links = links.collect::<Result<Vec<_>, StartError>>()?;
        let mut added = Vec::new();
        for (shard, (config, device)) in self.shards().iter().zip(links) {
            let link = shard.add_link_here(device, &config);
            let first = added.first().copied();
            match link {
                // Packets that pass between cores name their link by its number.
                Ok(link) if first.is_none_or(|first| first == link) => added.push(link),
                other => {
                    added.extend(other.as_ref().ok());
                    self.remove_last(&added);
                    let differ = || io::Error::other("the links of the cores differ");
                    return Err(other.err().unwrap_or_else(|| differ().into()));
                }
            }
        }
        added.first().copied().ok_or(StartError::NoDevice)
    }

    /// Removes a link of all cores, with its addresses and routes, and drops its device; `false`: the link was removed
    /// before. Connections from its addresses end as if the peer did not answer.
    pub fn remove_link(&self, link: LinkId) -> bool {
        let gone: Vec<_> = self.shards().iter().map(|shard| shard.remove_link_here(link)).collect();
        // A later link may have the number.
        if let Some(member) = self.shards().first().and_then(|s| s.shared().member.as_ref()) {
            member.forget_lost(link);
        }
        gone.iter().any(Option::is_some)
    }

    /// Removes the links of the first cores.
    fn remove_last(&self, added: &[LinkId]) {
        for (shard, link) in self.shards().iter().zip(added) {
            drop(shard.remove_link_here(*link));
        }
    }
}
