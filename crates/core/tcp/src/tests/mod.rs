//! The kit of the unit tests: a [`Host`] for connections and queues. The tests of behaviour are in
//! `tests/conformance`, with a kit of their own.

use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::{
    CopyLedger, CopyReason, Frag, FragVec, GROUP_PAGES, Instant, PAGE_SIZE, PagePool, PageWriter,
};

use crate::{Config, Connection, Env, LinkLimits, Ports, SegmentOut, SendFlags, Seq, Shared};

/// A host: the memory that it lends to connections, and a device that fills pages of the same pool.
pub(crate) struct Host {
    pub(crate) now: Instant,
    pub(crate) ledger: CopyLedger,
    pub(crate) writer: PageWriter,
    pub(crate) pool: PagePool,
    pub(crate) shared: Shared,
    pub(crate) device: PageWriter,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self::with_groups(8)
    }

    pub(crate) fn with_groups(groups: usize) -> Self {
        Self {
            now: Instant::from_millis(1),
            ledger: CopyLedger::new(),
            writer: PageWriter::new(),
            pool: PagePool::new("test", groups * GROUP_PAGES * PAGE_SIZE).unwrap(),
            shared: Shared::default(),
            device: PageWriter::new(),
        }
    }

    pub(crate) fn env(&mut self) -> Env<'_> {
        Env {
            now: self.now,
            ledger: &mut self.ledger,
            pool: &mut self.pool,
            writer: &mut self.writer,
            shared: &mut self.shared,
        }
    }

    /// Two ends of a connection that stands.
    pub(crate) fn connected(&mut self, config: &Config, link: LinkLimits) -> [Connection; 2] {
        let config = Arc::new(config.clone());
        let (there, back) = (Ports { local: 1, remote: 2 }, Ports { local: 2, remote: 1 });
        let mut a = Connection::connect(self.now, Arc::clone(&config), link, there, Seq(1), 0);
        let syn = a.poll_transmit(&mut self.env()).unwrap();
        let mut b = Connection::accept(self.now, config, link, back, Seq(2), 0, &syn.header);
        self.exchange(&mut a, &mut b);
        [a, b]
    }

    /// Carries segments, a microsecond each way, until both sides have nothing more to send.
    pub(crate) fn exchange(&mut self, a: &mut Connection, b: &mut Connection) {
        for _ in 0..1000 {
            let moved = self.carry(a, b) + self.carry(b, a);
            if moved == 0 {
                return;
            }
        }
        panic!("they never end");
    }

    pub(crate) fn carry(&mut self, from: &mut Connection, to: &mut Connection) -> usize {
        let segments = self.output(from);
        self.now += Duration::from_micros(1);
        let n = segments.len();
        for segment in segments {
            let _ = to.handle_segment(&mut self.env(), &segment.header, segment.payload, 0);
        }
        n
    }

    pub(crate) fn output(&mut self, conn: &mut Connection) -> Vec<SegmentOut> {
        std::iter::from_fn(|| conn.poll_transmit(&mut self.env())).collect()
    }

    pub(crate) fn send(&mut self, conn: &mut Connection, bytes: usize) -> Frag {
        let frag = Frag::from_bytes(vec![7; bytes].into());
        let mut frags = FragVec::from_elem(frag.clone(), 1);
        assert_eq!(conn.send(&mut self.env(), &mut frags, SendFlags::empty()), Ok(bytes));
        frag
    }

    /// Payload behind the last, in the same pages.
    pub(crate) fn received(&mut self, bytes: &[u8]) -> FragVec {
        let reason = CopyReason::DeviceRx;
        let (frags, n) = self.device.write(&mut self.pool, bytes, &mut self.ledger, reason);
        assert_eq!(n, bytes.len(), "the pool is too small for this test");
        frags
    }

    /// Payload that starts a page which nothing else uses.
    pub(crate) fn received_alone(&mut self, bytes: &[u8]) -> FragVec {
        self.device.align();
        let frags = self.received(bytes);
        self.device.align();
        frags
    }
}
