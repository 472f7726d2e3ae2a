//! A guest's stack, a gateway's stack with its relay, and far ends that the tests hold. The stacks'
//! time is virtual, and each end of a Unix socket stands for a connection of the kernel's.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagewire::device::{Capabilities, RxChecksum, TxChecksum};
use pagewire::services::{
    DatagramKind, Error, Event, EveryPort, Instant, RecvFlags, SendFlags, Stack, TcpId,
};
use pagewire::tcp::TcpConfig;
use pagewire_stack::{Shard, StackConfig};

use crate::asking::{Desk, PolicySettings};
use crate::context::{Context, DescriptorShare, Ruling, Whole};
use crate::counters::Counters;
use crate::dns::{DnsConfig, DnsServer, OwnNames, Resolver};
use crate::echo::Echo;
use crate::epoll::EpollSet;
use crate::guest_link::GuestLink;
use crate::limits::UNSENT;
use crate::policy::{LocalAddresses, RouteSocket, Rules};
use crate::relay::{Closer, Dial, Dialled, Relay, Setup, Siblings};
use crate::request::{Ask, GuestId, How, Judge, Record, Verdict};
use crate::source::Source;
use crate::tally::Tally;
use crate::udp::Udp;
use crate::via::Vias;

/// The records of the journal.
pub(crate) type Records = Arc<Mutex<Vec<Record>>>;

/// The far ends of the dials.
#[derive(Clone, Default)]
pub(crate) struct Far(pub(crate) Arc<Mutex<Vec<(SocketAddr, UnixStream)>>>);

/// A port to which dials have no answer.
pub(crate) const SILENT: u16 = 9;

impl Dial for Far {
    fn dial(&self, to: SocketAddr, _: &Ask) -> io::Result<Dialled> {
        let (near, far) = UnixStream::pair()?;
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        let connected = to.port() != SILENT;
        if !connected {
            // A socket without room says nothing.
            while (&near).write(&[0; 65_536]).is_ok() {}
        }
        self.0.lock().unwrap().push((to, far));
        Ok(Dialled { socket: near.into(), connected })
    }
}

/// The settings of a test.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) rules: Rules,
    pub(crate) judge: Option<Arc<dyn Judge>>,
    pub(crate) policy: Option<PolicySettings>,
    pub(crate) names: OwnNames,
    pub(crate) resolver: Option<Resolver>,
    pub(crate) vias: Vias,
    pub(crate) routes: Arc<RouteSocket>,
    pub(crate) idle: Option<Duration>,
    pub(crate) connections: Option<usize>,
}

pub(crate) struct World {
    pub(crate) guest: Stack,
    pub(crate) gateway: Stack,
    pub(crate) relay: Relay,
    /// The gateway's other cores. All frames of the guest come in at the first.
    pub(crate) others: Vec<(Stack, Relay)>,
    pub(crate) now: Instant,
    pub(crate) far: Far,
    pub(crate) records: Records,
}

/// A stack in virtual time, whose last byte of the link address is `host`.
pub(crate) fn stack(
    host: u8,
    addresses: [&str; 2],
    change: impl FnOnce(&mut StackConfig),
) -> Stack {
    let capabilities = Capabilities::offloading([2, 0, 0, 0, 0, host], 1500);
    let addresses = addresses.iter().map(|addr| addr.parse().unwrap()).collect();
    let mut config = StackConfig::new(capabilities, addresses, [host; 32]);
    config.announce = false;
    config.memory = 16 << 20;
    change(&mut config);
    Stack::new(Instant::from_millis(1000), config).unwrap()
}

/// The context of a relay, and the records that it writes.
pub(crate) fn context(settings: Settings, stack: &mut Stack) -> (Context, Records) {
    let records = Records::default();
    let whole = whole_of(&settings);
    let ruling = Ruling::of(settings.rules.clone());
    let common = (whole, ruling, Arc::clone(&records));
    (context_of(settings, stack, common, Tally::lone()), records)
}

fn whole_of(settings: &Settings) -> Whole {
    Whole::new(settings.resolver.as_ref().unwrap_or(&Resolver::None))
}

/// The context of a relay that has this in common with the other relays of its guest.
fn context_of(
    settings: Settings,
    stack: &mut Stack,
    (whole, ruling, noted): (Whole, Ruling, Records),
    tally: Tally,
) -> Context {
    let (rules, rates) = ruling.on_shard(tally.index());
    let dns = DnsConfig {
        on: vec!["10.0.2.2".parse().unwrap(), "fd00:2::2".parse().unwrap()],
        resolver: settings.resolver.unwrap_or(Resolver::None),
        own: settings.names,
        rules: Arc::clone(&rules),
        resolves_open: settings.policy.is_some(),
        ..DnsConfig::default()
    };
    let desk = settings
        .policy
        .map(|policy| Desk::new(policy, whole.questions.clone(), tally.clone()).unwrap());
    let mut watch = EpollSet::new().unwrap();
    if let Some(desk) = &desk {
        watch.add_wakeup(desk.wait_fd()).unwrap();
    }
    let (memory, of_dns) = (whole.memory.clone(), tally.clone());
    Context {
        guest: GuestId(1),
        link: GuestLink {
            ours: vec!["10.0.2.2".parse().unwrap(), "fd00:2::2".parse().unwrap()],
            networks: vec!["10.0.2.2/24".parse().unwrap(), "fd00:2::2/64".parse().unwrap()],
            ..GuestLink::default()
        },
        source: Source::default(),
        rules,
        vias: Arc::new(settings.vias),
        judge: settings.judge,
        desk,
        dns: DnsServer::open_shared(stack, dns, memory, of_dns).unwrap(),
        local_addresses: LocalAddresses::new(settings.routes),
        journal: Some(Arc::new(move |record| noted.lock().unwrap().push(record))),
        watch,
        counters: Counters::default(),
        rates,
        whole,
        tally,
        share: DescriptorShare { all: 10_000, guests: Arc::default() },
        descriptors: 0,
    }
}

/// As [`context`], without a guest.
pub(crate) fn lone_context(settings: Settings) -> (Context, Records) {
    context(settings, &mut stack(2, ["10.0.2.2/24", "fd00:2::2/64"], |_| {}))
}

/// One core of a gateway.
fn shard(
    settings: Settings,
    common: (Whole, Ruling, Records),
    (place, tally, siblings): (Shard, Tally, Option<Siblings>),
    far: &Far,
) -> (Stack, Relay) {
    let tcp = TcpConfig { nagle: false, notsent_lowat: UNSENT, ..TcpConfig::default() };
    let every_shard = !tally.is_lone();
    let mut gateway = stack(2, ["10.0.2.2/24", "fd00:2::2/64"], |config| {
        (config.transparent, config.tcp) = (true, tcp);
        config.shard = every_shard.then_some(place);
    });
    let (idle, connections) = (settings.idle, settings.connections.unwrap_or(1000));
    let on = EveryPort { link: gateway.links().next().unwrap(), every_shard };
    let datagrams = gateway.bind_every(on, DatagramKind::Udp).unwrap();
    let udp = Udp::new(&mut gateway, datagrams, &common.0, &tally).unwrap();
    let echo = Echo::new(gateway.bind_every(on, DatagramKind::Echo).unwrap(), &tally);
    let listener = gateway.listen_every(on).unwrap();
    let mut context = context_of(settings, &mut gateway, common, tally);
    if let Some(parcels) = siblings.as_ref().and_then(Siblings::wait_fd) {
        context.watch.add_wakeup(parcels).unwrap();
    }
    let setup = Setup {
        listener,
        dialler: Arc::new(far.clone()),
        closer: Closer::without_thread(),
        connections,
        idle,
        addresses: vec!["10.0.2.15".parse().unwrap()],
        loopback: None,
        diverter: None,
        siblings,
    };
    let relay = Relay::new(context, setup, udp, echo);
    (gateway, relay)
}

impl World {
    pub(crate) fn new(settings: Settings) -> Self {
        Self::on_cores(settings, 1)
    }

    /// A gateway of so many cores.
    pub(crate) fn on_cores(settings: Settings, cores: usize) -> Self {
        let routers = ["10.0.2.2".parse().unwrap(), "fd00:2::2".parse().unwrap()];
        let inside = ["10.0.2.15/24", "fd00:2::15/64"];
        let guest = stack(15, inside, |config| config.gateways = routers.to_vec());
        let (far, records) = (Far::default(), Records::default());
        let whole = whole_of(&settings);
        let ruling = Ruling::of(settings.rules.clone());
        let places = Shard::all(cores, &[2; 32]).unwrap();
        let siblings = Siblings::of_shards(cores).unwrap();
        let parts = places.into_iter().zip(Tally::of_shards(cores)).zip(siblings);
        let mut shards = parts.map(|((place, tally), siblings)| {
            let common = (whole.clone(), ruling.clone(), Arc::clone(&records));
            shard(settings.clone(), common, (place, tally, siblings), &far)
        });
        let (gateway, relay) = shards.next().unwrap();
        let others = shards.collect();
        Self { guest, gateway, relay, others, now: Instant::from_millis(1000), far, records }
    }

    /// The gateway's cores, the first one in front.
    pub(crate) fn shards(&mut self) -> impl Iterator<Item = (&mut Stack, &mut Relay)> {
        let others = self.others.iter_mut().map(|(stack, relay)| (stack, relay));
        std::iter::once((&mut self.gateway, &mut self.relay)).chain(others)
    }

    /// Number of connections that each core has.
    pub(crate) fn spread(&mut self) -> Vec<usize> {
        self.shards().map(|(_, relay)| relay.connections()).collect()
    }

    /// Passes packets between cores. Returns their number.
    fn pass_strays(&mut self) -> usize {
        let now = self.now;
        let (mut all, mut strays) = (Vec::new(), VecDeque::new());
        for (stack, _) in self.shards() {
            while let Some(to) = stack.poll_strays(&mut strays) {
                all.extend(strays.drain(..).map(|stray| (to, stray)));
            }
        }
        let passed = all.len();
        for (to, mut stray) in all {
            self.shards().nth(to).unwrap().0.handle_stray(now, &mut stray);
        }
        passed
    }

    /// Carries frames and events until nothing more happens.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            let now = self.now;
            let mut carried = carry(now, &mut self.guest, &mut self.gateway)
                + carry(now, &mut self.gateway, &mut self.guest);
            for (other, _) in &mut self.others {
                carried += carry(now, other, &mut self.guest);
            }
            carried += self.pass_strays();
            while self.guest.poll_event().is_some() {}
            let mut is_over = carried == 0;
            for (stack, relay) in self.shards() {
                let events: Vec<Event> = std::iter::from_fn(|| stack.poll_event()).collect();
                let due = relay.poll_timeout().is_some_and(|at| at <= now);
                if carried == 0 && events.is_empty() && !due && !relay.poll() {
                    continue;
                }
                is_over = false;
                relay.turn(now, stack, &events);
                relay.note_in_use();
                stack.end_turn();
            }
            if is_over {
                return;
            }
            self.guest.end_turn();
        }
        panic!("it never settles");
    }

    /// Lets time pass, with all that is due on the way.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let of = |(stack, relay): (&mut Stack, &mut Relay)| {
                [stack.poll_timeout(), relay.poll_timeout()]
            };
            let due: Vec<_> = self.shards().flat_map(of).collect();
            let due = due.into_iter().chain([self.guest.poll_timeout()]);
            let next = due.flatten().min().unwrap_or(end);
            self.now = next.max(self.now + Duration::from_micros(1)).min(end);
            let now = self.now;
            self.guest.handle_timeout(now);
            self.shards().for_each(|(stack, _)| stack.handle_timeout(now));
            self.settle();
        }
    }

    pub(crate) fn connect(&mut self, to: &str) -> TcpId {
        let id = self.guest.connect(self.now, to.parse().unwrap(), None).unwrap();
        self.settle();
        id
    }

    /// How the guest's connection ended; `None`: it has not.
    pub(crate) fn error(&mut self, id: TcpId) -> Option<Error> {
        let mut byte = [0; 1];
        let mut tcp = self.guest.tcp(id).unwrap();
        match tcp.recv(self.now, &mut byte[..], RecvFlags::PEEK) {
            Ok(_) | Err(Error::WouldBlock | Error::NotConnected) => None,
            Err(error) => Some(error),
        }
    }

    pub(crate) fn say(&mut self, id: TcpId, bytes: &[u8]) {
        self.guest.tcp(id).unwrap().send(self.now, bytes, SendFlags::empty()).unwrap();
        self.settle();
    }

    /// The far end of a dial.
    pub(crate) fn far(&self, nth: usize) -> UnixStream {
        self.far.0.lock().unwrap()[nth].1.try_clone().unwrap()
    }

    pub(crate) fn dialled(&self) -> Vec<SocketAddr> {
        self.far.0.lock().unwrap().iter().map(|(to, _)| *to).collect()
    }

    pub(crate) fn ends(&self) -> Vec<How> {
        let ends = |record: &Record| match record {
            Record::Closed { how, .. } => Some(*how),
            _ => None,
        };
        self.records.lock().unwrap().iter().filter_map(ends).collect()
    }

    pub(crate) fn verdicts(&self) -> Vec<Verdict> {
        let verdicts = |record: &Record| match record {
            Record::Verdict { verdict, .. } => Some(*verdict),
            _ => None,
        };
        self.records.lock().unwrap().iter().filter_map(verdicts).collect()
    }
}

/// Moves all frames of `from` to `to`, as over a perfect line, and returns their number.
pub(crate) fn carry(now: Instant, from: &mut Stack, to: &mut Stack) -> usize {
    let (mut frames, mut carried) = (VecDeque::new(), 0);
    loop {
        let more = from.poll_transmit(now, &mut frames);
        carried += frames.len();
        for mut frame in frames.drain(..) {
            if frame.tx_checksum != TxChecksum::Done {
                (frame.tx_checksum, frame.rx_checksum) = (TxChecksum::Done, RxChecksum::Valid);
            }
            to.handle_frame(now, frame);
        }
        if !more {
            return carried;
        }
    }
}
