//! The start of a host of several cores ([`CoresBuilder`]).

use std::fmt;
use std::sync::Arc;

use pagewire_device::{Device, SharedDevice};
use pagewire_stack::Shard;

use super::Cores;
use crate::HostBuilder;
use crate::driver;
use crate::error::StartError;
use crate::exit;
use crate::host::Host;
use crate::shared::Shared;
use crate::shared::group::Group;

/// Settings of a new host of several cores: [`HostBuilder::cores`].
#[must_use]
pub struct CoresBuilder {
    host: HostBuilder,
    count: usize,
    /// Queues of the first link's device, in the place of that which the host's settings have.
    queues: Vec<Box<dyn Device>>,
}

impl HostBuilder {
    /// Makes this a host of several cores, 1 to [`Cores::MAX`], with a stack on each: see [`Cores`]. Settings of memory are of
    /// all together. A device with one queue serves all; [`device_queues`](CoresBuilder::device_queues) gives each
    /// core a queue.
    pub fn cores(self, count: usize) -> CoresBuilder {
        CoresBuilder { host: self, count, queues: Vec::new() }
    }
}

impl CoresBuilder {
    /// Queues of the first link's device, one for each core, such as those of `TapBuilder::open_queues`, in the place of
    /// [`HostBuilder::device`], whose device is dropped. Cores beyond the number of queues send by those of others, and receive through them.
    pub fn device_queues<D: Device + 'static>(
        mut self,
        queues: impl IntoIterator<Item = D>,
    ) -> Self {
        self.queues.extend(queues.into_iter().map(|queue| Box::new(queue) as Box<dyn Device>));
        self
    }

    /// Starts the host, with a thread for each core, unless it is [manual](HostBuilder::manual).
    ///
    /// # Errors
    /// Those of [`HostBuilder::start`]; [`StartError::Cores`], [`StartError::Queues`].
    pub fn start(self) -> Result<Cores, StartError> {
        self.start_driven(|_, shared| driver::start(shared).map_err(StartError::from))
    }

    /// Starts the host without threads of its own: a task in each of these runtimes drives a core, see
    /// [`HostBuilder::start_in_runtime`]. Give each core a runtime of one thread, on its own thread.
    ///
    /// # Errors
    /// Those of [`start`](Self::start); [`StartError::NoRuntime`] if there are fewer runtimes than cores, or one is
    /// without I/O (`enable_io`).
    #[cfg(feature = "tokio")]
    pub fn start_in_runtimes(
        mut self,
        runtimes: &[tokio::runtime::Handle],
    ) -> Result<Cores, StartError> {
        self.host = self.host.not_manual();
        if runtimes.len() < self.count {
            return Err(StartError::NoRuntime);
        }
        self.start_driven(|index, shared| {
            let _guard = runtimes.get(index).ok_or(StartError::NoRuntime)?.enter();
            driver::task::spawn(shared)
        })
    }

    fn start_driven(
        mut self,
        drive: impl Fn(usize, &Arc<Shared>) -> Result<(), StartError>,
    ) -> Result<Cores, StartError> {
        let count = self.count;
        if !(1..=Cores::MAX).contains(&count) {
            return Err(StartError::Cores(count));
        }
        let mut queues = self.queues.into_iter();
        if let Some(queue) = queues.next() {
            self.host = self.host.device(queue);
        }
        let (plan, links) = self.host.plan()?;
        let mut links = links.into_iter();
        let queues: Vec<_> = links.next().into_iter().chain(queues).collect();
        let mut devices: Vec<Vec<_>> = spread(queues, count)?.map(|device| vec![device]).collect();
        for link in links {
            devices.iter_mut().zip(spread(vec![link], count)?).for_each(|(of, end)| of.push(end));
        }
        let mut config = plan.config.clone();
        config.memory /= count;
        let places = Shard::all(count, &config.secret).ok_or(StartError::Cores(count))?;
        let (members, mut shards) = (Group::members(count), Vec::with_capacity(count));
        for ((place, member), devices) in places.into_iter().zip(members).zip(devices) {
            let mut config = config.clone();
            // A host of one core is one without shards, and costs no more.
            config.shard = (count > 1).then_some(place);
            shards.push(plan.shared(config, devices, (count > 1).then_some(member))?);
        }
        if let Some(member) = shards.first().and_then(|shard| shard.member.as_ref()) {
            member.set_members(&shards);
        }
        if !plan.manual {
            for (index, shard) in shards.iter().enumerate() {
                if let Err(error) = drive(index, shard) {
                    give_up(&shards);
                    return Err(error);
                }
            }
        }
        shards.iter().for_each(exit::register);
        Ok(Cores::new(Host::of_shards(shards, plan.resolver).collect()))
    }
}

/// Ends shards of which not all could be started.
fn give_up(shards: &[Arc<Shared>]) {
    shards.iter().filter_map(|shard| shard.member.as_ref()).for_each(|member| member.fail());
    shards.iter().for_each(|shard| shard.reset_all());
}

/// A device for each of `count` shards, in their order: each queue is for one of them, or shared by several.
pub(super) fn spread(
    queues: Vec<Box<dyn Device>>,
    count: usize,
) -> Result<impl Iterator<Item = Box<dyn Device>>, StartError> {
    let facts = |queue: &dyn Device| (queue.capabilities().mac, queue.capabilities().mtu);
    let given = queues.len();
    let first = queues.first().map(|queue| facts(queue.as_ref()));
    if given > count || queues.iter().any(|queue| Some(facts(queue.as_ref())) != first) {
        return Err(StartError::Queues { queues: given, cores: count });
    }
    let mut ends: Vec<(usize, Box<dyn Device>)> = Vec::with_capacity(count);
    for (index, queue) in queues.into_iter().enumerate() {
        let users = (index..count).step_by(given);
        match users.len() {
            1 => ends.push((index, queue)),
            several => {
                let shared = SharedDevice::split(queue, several)?.into_iter();
                ends.extend(users.zip(shared.map(|end| Box::new(end) as Box<dyn Device>)));
            }
        }
    }
    ends.sort_by_key(|(shard, _)| *shard);
    Ok(ends.into_iter().map(|(_, device)| device))
}

impl fmt::Debug for CoresBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CoresBuilder");
        debug.field("host", &self.host).field("count", &self.count).finish_non_exhaustive()
    }
}
