//! Mapping what was received: the checks and their order are those of Linux's first version (commit
//! 93ab6cc69162), what is available those of its second (05255b823a61).

use crate::support::*;

const PAGE: u32 = PAGE_SIZE as u32;

/// A device that fills pages, and what it has filled.
struct Device {
    pool: PagePool,
    writer: PageWriter,
    seq: u32,
}

impl Device {
    fn new() -> Self {
        let pool = PagePool::new("device", 4 << 20).unwrap();
        Self { pool, writer: PageWriter::new(), seq: 1 }
    }

    /// The next `len` bytes of the peer's stream, behind the last in memory.
    fn receive(&mut self, len: u32) -> FragVec {
        let bytes: Vec<u8> = (0..len).map(|i| byte(self.seq + i)).collect();
        self.seq += len;
        let ledger = &mut CopyLedger::new();
        let reason = CopyReason::DeviceRx;
        self.writer.write(&mut self.pool, &bytes, ledger, reason).0
    }
}

/// A connection with a window of a megabyte.
fn established() -> Test {
    let config = Config { recv_buffer: 1 << 20, recv_buffer_initial: 1 << 20, ..plain() };
    Test::established_with(config, link(), "S. 0:0(0) ack 1 win 60000 <mss 1000,wscale 5>")
}

impl Test {
    /// The peer's next `len` bytes arrive in the device's pages.
    fn fills(&mut self, device: &mut Device, len: u32) -> &mut Self {
        self.fills_with(device, ".", "", len)
    }

    fn fills_with(&mut self, device: &mut Device, flags: &str, more: &str, len: u32) -> &mut Self {
        let seq = device.seq;
        let text = format!("{flags} {seq}:{}({len}) ack 1 {more}", seq + len);
        let payload = device.receive(len);
        self.peer_frags(&text, payload);
        self.sent();
        self
    }

    /// Maps, and reads the bytes as a mapping would show them.
    fn try_map(&mut self, len: u32) -> Result<Vec<u8>, MapRefusal> {
        let mapped = self.env(|c, env| c.map(env, len as usize, |parts| Ok(parts.count())));
        self.drain();
        mapped.map(|(count, frags)| {
            assert_eq!(count, frags.len());
            assert!(frags.iter().all(Frag::is_page_aligned));
            bytes(&frags)
        })
    }

    fn map_available(&mut self, max: usize) -> (Vec<u8>, usize) {
        let found = self.env(|c, env| {
            c.map_available(env, max, |parts| Ok(((), parts.map(|(_, len)| len).sum())))
        });
        let Available { mapped, copy_next } = found.unwrap();
        (mapped.map_or_else(Vec::new, |((), frags)| bytes(&frags)), copy_next)
    }
}

fn bytes(frags: &[Frag]) -> Vec<u8> {
    frags.iter().flat_map(|frag| frag.as_slice().unwrap()).copied().collect()
}

/// Bytes of the peer's stream, the first numbered 1.
fn stream(from: u32, len: u32) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

// ---- 5.2's table, row by row ----

given! {
    let (mut t, mut device) = (established(), Device::new());

    a_length_that_is_no_positive_multiple_of_the_page_is_refused_before_all_else {
        t.fills_with(&mut device, "U.", "urg 1", 2 * PAGE);
        for len in [0, 1, PAGE - 1, PAGE + 1] {
            assert_eq!(t.try_map(len), Err(MapRefusal::Length));
        }
        let mut closed = established();
        closed.abort();
        assert_eq!(closed.try_map(100), Err(MapRefusal::Length));
    }
    fewer_bytes_than_asked_for_are_refused_without_waiting_and_stay {
        assert_eq!(t.try_map(PAGE), Err(MapRefusal::NotEnough));
        t.fills(&mut device, 2 * PAGE - 1);
        assert_eq!(t.try_map(2 * PAGE), Err(MapRefusal::NotEnough));
        t.fills(&mut device, 1);
        assert_eq!(t.try_map(2 * PAGE), Ok(stream(1, 2 * PAGE)));
    }
    fewer_bytes_before_the_end_are_refused_as_such_and_stay {
        t.fills_with(&mut device, "F.", "", PAGE + 10);
        assert_eq!(t.try_map(2 * PAGE), Err(MapRefusal::Ended));
        assert_eq!(t.try_map(PAGE), Ok(stream(1, PAGE)));
        assert_eq!(t.try_map(PAGE), Err(MapRefusal::Ended));
        assert_eq!(t.try_read(100), Ok(stream(1 + PAGE, 10)));
        assert_eq!(t.try_read(100), Ok(vec![]));
    }
    a_fin_is_no_byte_of_the_range {
        t.fills_with(&mut device, "F.", "", 2 * PAGE - 1);
        assert_eq!(t.try_map(2 * PAGE), Err(MapRefusal::Ended));
        let (mut t, mut device) = (established(), Device::new());
        t.fills_with(&mut device, "F.", "", 2 * PAGE);
        assert_eq!(t.try_map(2 * PAGE), Ok(stream(1, 2 * PAGE)));
    }
    what_was_received_before_a_reset_can_be_mapped {
        t.fills(&mut device, 2 * PAGE).peer(&format!("R. {}:{0}(0) ack 1", device.seq));
        assert_eq!(t.try_map(PAGE), Ok(stream(1, PAGE)));
        assert_eq!(t.try_map(2 * PAGE), Err(MapRefusal::Ended));
        assert_eq!(t.try_map(PAGE), Ok(stream(1 + PAGE, PAGE)));
    }
    a_direction_that_is_shut_for_reading_has_an_end {
        t.fills(&mut device, PAGE).shutdown_read();
        assert_eq!(t.try_map(2 * PAGE), Err(MapRefusal::Ended));
        assert_eq!(t.try_map(PAGE), Ok(stream(1, PAGE)));
    }
    a_direction_that_is_shut_for_writing_is_mapped_as_ever {
        t.shutdown().sent();
        t.peer(". 1:1(0) ack 2").state(State::FinWait2);
        assert_eq!(t.try_map(PAGE), Err(MapRefusal::NotEnough));
        t.fills_with(&mut device, ".", "", PAGE);
        assert_eq!(t.try_map(PAGE), Ok(stream(1, PAGE)));
    }
    an_urgent_byte_before_or_behind_the_range_does_not_matter {
        t.fills_with(&mut device, "U.", &format!("urg {}", 2 * PAGE + 1), 3 * PAGE);
        assert_eq!(t.try_map(2 * PAGE), Ok(stream(1, 2 * PAGE)));
        assert_eq!(t.try_map(PAGE), Err(MapRefusal::Urgent));
        // The next read steps over the byte and takes the rest of its page.
        assert_eq!(t.try_read(PAGE_SIZE), Ok(stream(2 * PAGE + 2, PAGE - 1)));
        t.fills(&mut device, PAGE);
        assert_eq!(t.try_map(PAGE), Ok(stream(3 * PAGE + 1, PAGE)));
    }
    an_urgent_byte_that_is_only_announced_lies_behind_the_range {
        t.fills_with(&mut device, "U.", &format!("urg {}", PAGE + 1), PAGE);
        assert_eq!(t.try_map(PAGE), Ok(stream(1, PAGE)));
    }
    urgent_data_is_looked_for_before_pages_are {
        device.receive(10);
        device.seq = 1;
        t.fills_with(&mut device, "U.", "urg 1", 2 * PAGE);
        assert_eq!(t.try_map(PAGE), Err(MapRefusal::Urgent));
    }
    without_memory_nothing_is_consumed {
        t.fills(&mut device, 2 * PAGE);
        let refused =
            t.env(|c, env| c.map(env, PAGE_SIZE, |_| Err::<(), _>(MapRefusal::NoMemory)).map(|_| ()));
        assert_eq!(refused, Err(MapRefusal::NoMemory));
        assert_eq!(t.try_map(2 * PAGE), Ok(stream(1, 2 * PAGE)));
    }
    an_offset_in_the_page_refuses_until_it_is_read_away {
        device.receive(96);
        device.seq = 1;
        t.fills(&mut device, 2 * PAGE);
        assert_eq!(t.try_map(PAGE), Err(MapRefusal::NotPages));
        t.read(PAGE_SIZE - 96);
        assert_eq!(t.try_map(PAGE), Ok(stream(1 + PAGE - 96, PAGE)));
    }
    reading_a_part_of_a_page_puts_an_offset_before_the_next {
        t.fills(&mut device, 3 * PAGE).read(1);
        assert_eq!(t.try_map(PAGE), Err(MapRefusal::NotPages));
        t.read(PAGE_SIZE - 1);
        assert_eq!(t.try_map(2 * PAGE), Ok(stream(1 + PAGE, 2 * PAGE)));
    }
    a_short_fragment_in_the_middle_refuses_the_range_but_not_what_is_before_it {
        t.fills(&mut device, 2 * PAGE + 1000);
        device.writer.align();
        t.fills(&mut device, 2 * PAGE);
        assert_eq!(t.try_map(4 * PAGE), Err(MapRefusal::NotPages));
        assert_eq!(t.try_map(3 * PAGE), Err(MapRefusal::NotPages));
        assert_eq!(t.try_map(2 * PAGE), Ok(stream(1, 2 * PAGE)));
        assert_eq!(t.try_map(PAGE), Err(MapRefusal::NotPages));
        t.read(1000);
        assert_eq!(t.try_map(2 * PAGE), Ok(stream(1 + 2 * PAGE + 1000, 2 * PAGE)));
    }
    segments_of_any_length_that_lie_side_by_side_are_whole_pages {
        for _ in 0..9 {
            t.fills(&mut device, 1000);
        }
        assert_eq!(t.try_map(2 * PAGE), Ok(stream(1, 2 * PAGE)));
        t.read(9000 - 2 * PAGE_SIZE);
    }
    what_came_out_of_order_is_mapped_once_the_gap_is_filled {
        let (first, second) = (device.receive(PAGE), device.receive(PAGE));
        t.peer_frags(&format!(". {}:{}(4096) ack 1", PAGE + 1, 2 * PAGE + 1), second);
        assert_eq!(t.try_map(2 * PAGE), Err(MapRefusal::NotEnough));
        t.peer_frags(&format!(". 1:{}(4096) ack 1", PAGE + 1), first);
        assert_eq!(t.try_map(2 * PAGE), Ok(stream(1, 2 * PAGE)));
    }
}

#[test]
fn a_connection_that_is_over_has_an_end() {
    let mut t = established();
    t.peer("R. 1:1(0) ack 1").state(State::Closed);
    assert_eq!(t.try_map(PAGE), Err(MapRefusal::Ended));
    // Mapping does not report the error: the next read does.
    assert_eq!(t.try_read(1), Err(TcpError::ConnectionReset));
}

#[test]
fn an_urgent_byte_anywhere_in_the_range_refuses_it() {
    for urgent in [1, 2, PAGE, PAGE + 1, 2 * PAGE] {
        let (mut t, mut device) = (established(), Device::new());
        t.fills_with(&mut device, "U.", &format!("urg {urgent}"), 3 * PAGE);
        assert_eq!(t.try_map(2 * PAGE), Err(MapRefusal::Urgent), "byte {urgent}");
        // A read of the byte out of line changes nothing.
        assert_eq!(t.conn.read_urgent(RecvFlags::empty()), Ok(byte(urgent)));
        assert_eq!(t.try_map(2 * PAGE), Err(MapRefusal::Urgent), "byte {urgent}");
        assert_eq!(t.conn.queued_receive(), 3 * PAGE_SIZE);
    }
}

#[test]
fn mapping_opens_the_window_and_considers_an_acknowledgement() {
    let config = Config { recv_buffer: 64 << 10, recv_buffer_initial: 64 << 10, ..plain() };
    let mut device = Device::new();
    let mut t = Test::established_with(config, link(), "S. 0:0(0) ack 1 win 60000 <mss 1000>");
    while t.conn.info().recv_window >= PAGE {
        let len = t.conn.info().recv_window.min(4 * PAGE) / PAGE * PAGE;
        t.fills(&mut device, len);
    }
    let queued = t.conn.queued_receive() as u32;
    assert!(t.conn.info().recv_window < PAGE);
    t.try_map(queued / PAGE * PAGE).unwrap();
    let acks = t.sent_segments();
    assert!(!acks.is_empty(), "no update of the window was sent");
    assert!(t.conn.info().recv_window >= 14 * PAGE);
}

// ---- what is available ----

given! {
    let (mut t, mut device) = (established(), Device::new());

    available_are_all_whole_pages_and_then_what_to_copy {
        t.fills(&mut device, 2 * PAGE + 100);
        device.writer.align();
        t.fills(&mut device, 2 * PAGE);
        assert_eq!(t.map_available(1 << 20), (stream(1, 2 * PAGE), 100));
        // Again without reading: nothing, and the same to copy.
        assert_eq!(t.map_available(1 << 20), (vec![], 100));
        t.read(100);
        assert_eq!(t.map_available(1 << 20), (stream(1 + 2 * PAGE + 100, 2 * PAGE), 0));
        assert_eq!(t.map_available(1 << 20), (vec![], 0));
    }
    a_length_between_pages_is_rounded_down_and_less_than_a_page_is_to_be_copied {
        t.fills(&mut device, 3 * PAGE);
        assert_eq!(t.map_available(PAGE_SIZE + 904), (stream(1, PAGE), 0));
        assert_eq!(t.map_available(100), (vec![], 100));
        assert_eq!(t.map_available(0), (vec![], 0));
    }
    an_offset_is_to_be_copied_up_to_the_next_page {
        t.fills(&mut device, 2 * PAGE).read(1000);
        assert_eq!(t.map_available(1 << 20), (vec![], PAGE_SIZE - 1000));
        t.read(PAGE_SIZE - 1000);
        assert_eq!(t.map_available(1 << 20), (stream(1 + PAGE, PAGE), 0));
    }
    pages_without_a_place_are_to_be_copied {
        t.fills(&mut device, 2 * PAGE);
        let found = t.env(|c, env| {
            c.map_available(env, 1 << 20, |_| Err::<((), usize), _>(MapRefusal::NotPages))
        });
        assert_eq!(found.map(|found| found.copy_next).unwrap(), 2 * PAGE_SIZE);
        assert_eq!(t.conn.queued_receive(), 2 * PAGE_SIZE);
    }
    available_pages_end_before_an_urgent_byte_and_go_on_behind_it {
        t.fills_with(&mut device, "U.", &format!("urg {}", PAGE + 11), 3 * PAGE);
        assert_eq!(t.map_available(1 << 20), (stream(1, PAGE), 10));
        t.read(10);
        assert!(t.conn.at_urgent_mark());
        // `map_available` steps over the byte as a read does, so a caller that repeats it makes progress.
        assert_eq!(t.map_available(1 << 20), (vec![], PAGE_SIZE - 11));
        t.read(PAGE_SIZE - 11);
        assert_eq!(t.map_available(1 << 20), (stream(1 + 2 * PAGE, PAGE), 0));
    }
}

#[test]
fn a_tail_that_is_no_page_is_to_be_copied_unless_all_that_was_asked_for_is_mapped() {
    for (max, copy_next) in [(1 << 20, 100), (PAGE_SIZE, 0)] {
        let (mut t, mut device) = (established(), Device::new());
        t.fills(&mut device, PAGE + 100);
        assert_eq!(t.map_available(max), (stream(1, PAGE), copy_next), "up to {max}");
    }
}

#[test]
fn an_urgent_byte_in_line_is_to_be_copied() {
    let config =
        Config { oob_inline: true, recv_buffer: 1 << 20, recv_buffer_initial: 1 << 20, ..plain() };
    let mut device = Device::new();
    let mut t = Test::established_with(config, link(), "S. 0:0(0) ack 1 win 60000 <mss 1000>");
    t.fills_with(&mut device, "U.", "urg 1", 3 * PAGE);
    assert_eq!(t.map_available(1 << 20), (vec![], PAGE_SIZE));
    t.read(PAGE_SIZE);
    assert_eq!(t.map_available(1 << 20), (stream(1 + PAGE, 2 * PAGE), 0));
}
