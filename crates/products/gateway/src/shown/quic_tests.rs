//! ClientHellos in QUIC's Initial packets.

use aes_gcm::aes::Aes128;
use aes_gcm::aes::cipher::BlockCipherEncrypt;
use aes_gcm::{AeadInOut, Aes128Gcm, KeyInit};

use super::quic::{Keys, Look, QuicFlow, Version};

/// The destination of the RFCs' examples.
const ID: &[u8] = &[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];

/// Other first destinations.
const OTHER: &[u8] = &[0x11; 8];
const THIRD: &[u8] = &[0x22; 20];

/// A destination that a server chose.
const SERVERS: &[u8] = &[0x5e; 5];

/// Length of an Initial packet's header with [`ID`] and a packet number of 4 bytes.
const HEADER: usize = 22;

/// Length of the shortest datagram with an Initial packet.
const DATAGRAM: usize = 1200;

/// The CRYPTO frame of the examples (RFC 9001 appendix A.2, RFC 9369 appendix A.2).
const EXAMPLE: &str = "060040f1010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e868\
    04fe3a47f06a2b69484c00000413011302010000c000000010000e00000b6578\
    616d706c652e636f6dff01000100000a00080006001d00170018001000070005\
    04616c706e000500050100000000003300260024001d00209370b2c9caa47fba\
    baf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b000302030400\
    0d0010000e0403050306030203080408050806002d00020101001c0002400100\
    3900320408ffffffffffffffff05048000ffff07048000ffff08011001048000\
    75300901100f088394c8f03e51570806048000ffff";

fn hex(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// A number of 2 bytes (RFC 9000 section 16).
fn varint(number: usize) -> [u8; 2] {
    (0x4000 | u16::try_from(number).unwrap()).to_be_bytes()
}

/// A CRYPTO frame.
fn crypto(offset: usize, data: &[u8]) -> Vec<u8> {
    [&[6][..], &varint(offset), &varint(data.len()), data].concat()
}

/// A ClientHello of this length, as far as QUIC reads it.
fn hello(name: &str, length: usize) -> Vec<u8> {
    let mut hello = vec![1, 0];
    hello.extend_from_slice(&u16::try_from(length - 4).unwrap().to_be_bytes());
    hello.extend(name.bytes().cycle().take(length - 4));
    hello
}

/// An Initial packet to be made.
#[derive(Clone, Copy)]
struct Initial<'a> {
    version: Version,
    /// The destination that the keys come from.
    keys: &'a [u8],
    to: &'a [u8],
    token: &'a [u8],
    number: u64,
    number_length: usize,
    /// Other bits of the first byte.
    bits: u8,
}

/// An Initial packet to this destination and with its keys.
fn initial(id: &[u8], number: u64) -> Initial<'_> {
    Initial {
        version: Version::One,
        keys: id,
        to: id,
        token: &[],
        number,
        number_length: 4,
        bits: 0,
    }
}

impl Initial<'_> {
    /// The header without protection.
    fn header(&self, payload: usize) -> Vec<u8> {
        let (first, version) = match self.version {
            Version::One => (0xc0, 1u32),
            Version::Two => (0xd0, 0x6b33_43cf),
        };
        let length = u8::try_from(self.number_length).unwrap();
        let mut header = vec![(first | (length - 1)) ^ self.bits];
        header.extend_from_slice(&version.to_be_bytes());
        header.push(u8::try_from(self.to.len()).unwrap());
        header.extend_from_slice(self.to);
        header.push(0);
        header.push(u8::try_from(self.token.len()).unwrap());
        header.extend_from_slice(self.token);
        header.extend_from_slice(&varint(self.number_length + payload + 16));
        header.extend_from_slice(&self.number.to_be_bytes()[8 - self.number_length..]);
        header
    }

    /// The packet with these frames.
    fn packet(&self, frames: &[u8]) -> Vec<u8> {
        let keys = Keys::client(self.version, self.keys).unwrap();
        let header = self.header(frames.len());
        let mut payload = frames.to_vec();
        let tag = Aes128Gcm::new(&keys.key.into())
            .encrypt_inout_detached(
                &keys.nonce(self.number).into(),
                &header,
                payload.as_mut_slice().into(),
            )
            .unwrap();
        let mut packet = [&header, &payload[..], &tag].concat();
        self.protect(&keys, &mut packet);
        packet
    }

    /// Protects a header; this also undoes it.
    fn protect(&self, keys: &Keys, packet: &mut [u8]) {
        let at = self.header(0).len() - self.number_length;
        let (mask, masks) = keys.mask(*packet[at + 4..].first_chunk().unwrap());
        packet[0] ^= mask;
        for (byte, mask) in packet[at..].iter_mut().zip(masks).take(self.number_length) {
            *byte ^= mask;
        }
    }

    /// A datagram of 1200 bytes with these frames.
    fn datagram(&self, frames: &[u8]) -> Vec<u8> {
        let mut frames = frames.to_vec();
        frames.resize(DATAGRAM - 16 - self.header(0).len(), 0);
        self.packet(&frames)
    }
}

/// Datagrams with this ClientHello of the connection `id`, in `parts`.
pub(super) fn initials(id: &[u8], hello: &[u8], parts: usize) -> Vec<Vec<u8>> {
    let most = hello.len().div_ceil(parts);
    let part = |(n, part): (usize, &[u8])| initial(id, n as u64).datagram(&crypto(n * most, part));
    hello.chunks(most).enumerate().map(part).collect()
}

/// Another packet with a long header: no key of it is known.
fn long(first: u8, version: u32, to: &[u8]) -> Vec<u8> {
    let mut packet = vec![first];
    packet.extend_from_slice(&version.to_be_bytes());
    packet.push(u8::try_from(to.len()).unwrap());
    packet.extend_from_slice(to);
    packet.extend_from_slice(&[0, 20]);
    packet.extend_from_slice(&[0x77; 20]);
    packet
}

fn zero_rtt(to: &[u8]) -> Vec<u8> {
    long(0xd0, 1, to)
}

fn handshake(to: &[u8]) -> Vec<u8> {
    long(0xe0, 1, to)
}

/// A packet with a short header.
const SHORT: &[u8] = &[0x41; 40];

/// A flow on which the connection [`ID`] showed this ClientHello.
fn open(hello: &[u8]) -> QuicFlow {
    let mut flow = QuicFlow::default();
    let look = flow.look(&initial(ID, 0).datagram(&crypto(0, hello)));
    assert_eq!(look, Look::ClientHello(hello.to_vec()));
    flow
}

/// Whether a new flow cannot read a datagram with these frames.
fn is_unreadable(frames: &[u8]) -> bool {
    QuicFlow::default().look(&initial(ID, 0).datagram(frames)) == Look::Unreadable
}

#[test]
fn keys_are_those_of_the_examples() {
    let one = Keys::client(Version::One, ID).unwrap();
    assert_eq!(one.key.to_vec(), hex("1f369613dd76d5467730efcbe3b1a22d"));
    assert_eq!(one.iv.to_vec(), hex("fa044b2f42a3fd3b46fb255c"));
    assert_eq!(one.header.to_vec(), hex("9f50449e04a0e810283a1e9933adedd2"));
    let two = Keys::client(Version::Two, ID).unwrap();
    assert_eq!(two.key.to_vec(), hex("8b1a0bc121284290a29e0971b5cd045d"));
    assert_eq!(two.iv.to_vec(), hex("91f73e2351d8fa91660e909f"));
    assert_eq!(two.header.to_vec(), hex("45b95e15235d6f45a6b19cbcb0294ba9"));
}

/// The examples' packets have these headers, samples and tags. A tag is that of all bytes of its
/// packet.
#[test]
fn the_examples_of_both_versions_show_their_client_hello() {
    for (version, start, tag) in [
        (
            Version::One,
            "c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11d242b123dc9b",
            "e221af44860018ab0856972e194cd934",
        ),
        (
            Version::Two,
            "d76b3343cf088394c8f03e5157080000449ea0c95e82ffe67b6abcdb4298b485dd04de806071",
            "a18b2faa745b6fe189cf772a9f84cbfc",
        ),
    ] {
        let frame = hex(EXAMPLE);
        let datagram = Initial { version, ..initial(ID, 2) }.datagram(&frame);
        assert_eq!(datagram.len(), DATAGRAM);
        assert_eq!(datagram[..HEADER + 16], hex(start));
        assert_eq!(datagram[DATAGRAM - 16..], hex(tag));
        let look = QuicFlow::default().look(&datagram);
        assert_eq!(look, Look::ClientHello(frame[4..].to_vec()));
    }
}

#[test]
fn a_client_hello_in_two_datagrams_is_put_together() {
    let hello = hello("example.com", 1800);
    let mut flow = QuicFlow::default();
    assert_eq!(flow.look(&initial(ID, 0).datagram(&crypto(0, &hello[..1000]))), Look::More);
    let look = flow.look(&initial(ID, 1).datagram(&crypto(1000, &hello[1000..])));
    assert_eq!(look, Look::ClientHello(hello));
}

#[test]
fn pieces_of_a_client_hello_come_in_any_order() {
    let hello = hello("example.com", 1800);
    let piece = |from: usize, to: usize| crypto(from, &hello[from..to]);
    let mut flow = QuicFlow::default();
    let first = [piece(1500, 1800), vec![1, 0, 0], piece(2, 3), piece(600, 900)].concat();
    assert_eq!(flow.look(&initial(ID, 5).datagram(&first)), Look::More);
    let second = [piece(900, 1500), vec![1], piece(1, 2)].concat();
    assert_eq!(flow.look(&initial(ID, 3).datagram(&second)), Look::More);
    let third = [piece(3, 600), piece(0, 1)].concat();
    assert_eq!(flow.look(&initial(ID, 4).datagram(&third)), Look::ClientHello(hello));
}

#[test]
fn a_connection_waits_until_its_client_hello_is_whole() {
    let mut flow = open(&hello("example.com", 600));
    for frames in [&[1][..], &[0x1c, 0, 0, 0], &[2, 0, 0, 0, 0]] {
        assert_eq!(flow.look(&initial(OTHER, 0).datagram(frames)), Look::More);
    }
}

#[test]
fn a_client_hello_in_two_packets_of_a_datagram_is_put_together() {
    let hello = hello("example.com", 800);
    let first = initial(ID, 0).packet(&crypto(0, &hello[..300]));
    let mut second = crypto(300, &hello[300..]);
    second.resize(1000, 0);
    let datagram = [first, initial(ID, 1).packet(&second)].concat();
    assert_eq!(QuicFlow::default().look(&datagram), Look::ClientHello(hello));
}

#[test]
fn equal_bytes_may_be_shown_again() {
    let hello = hello("example.com", 600);
    let mut flow = QuicFlow::default();
    assert_eq!(flow.look(&initial(ID, 0).datagram(&crypto(0, &hello[..400]))), Look::More);
    assert_eq!(flow.look(&initial(ID, 1).datagram(&crypto(0, &hello[..400]))), Look::More);
    let whole = flow.look(&initial(ID, 2).datagram(&crypto(200, &hello[200..])));
    assert_eq!(whole, Look::ClientHello(hello.clone()));
    // The client has no acknowledgement yet.
    assert_eq!(flow.look(&initial(ID, 3).datagram(&crypto(0, &hello))), Look::Passes);
}

#[test]
fn other_bytes_at_the_same_offset_are_unreadable() {
    let good = hello("good.example", 600);
    let evil = hello("evil.example", 600);
    let mut flow = QuicFlow::default();
    assert_eq!(flow.look(&initial(ID, 0).datagram(&crypto(0, &good[..400]))), Look::More);
    let differs = initial(ID, 1).datagram(&crypto(300, &evil[300..]));
    assert_eq!(flow.look(&differs), Look::Unreadable);
    // The unreadable datagram left nothing behind.
    let rest = initial(ID, 2).datagram(&crypto(400, &good[400..]));
    assert_eq!(flow.look(&rest), Look::ClientHello(good.clone()));
    // Nor after it was judged: the server may not have had the good one.
    assert_eq!(flow.look(&differs), Look::Unreadable);
    assert_eq!(flow.look(&initial(ID, 3).datagram(&crypto(0, &evil))), Look::Unreadable);
    let twice = [crypto(0, &good), crypto(0, &evil)].concat();
    assert!(is_unreadable(&twice[..1150]));
}

#[test]
fn garbage_of_all_lengths_is_unreadable() {
    let mut state = 1u64;
    let mut flow = QuicFlow::default();
    for length in 0..1500 {
        for start in [&[][..], &[0xc3, 0, 0, 0, 1, 8], &[0xd1, 0x6b, 0x33, 0x43, 0xcf, 8], &[0x40]]
        {
            let mut datagram: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    state.to_be_bytes()[0]
                })
                .collect();
            let known = start.len().min(length);
            datagram[..known].copy_from_slice(&start[..known]);
            assert_eq!(flow.look(&datagram), Look::Unreadable, "{datagram:?}");
        }
    }
}

#[test]
fn a_datagram_cut_at_any_byte_is_unreadable() {
    let datagram = initial(ID, 0).datagram(&crypto(0, &hello("example.com", 600)));
    let mut flow = QuicFlow::default();
    for length in 0..datagram.len() {
        assert_eq!(flow.look(&datagram[..length]), Look::Unreadable, "{length}");
    }
}

#[test]
fn frames_cut_at_any_byte_are_unreadable() {
    let frames = [
        crypto(0, &hello("example.com", 100)),
        vec![3, 5, 0x40, 9, 1, 2, 3, 4, 5, 6, 7],
        vec![0x1c, 0x41, 0, 6, 3, b'b', b'y', b'e'],
    ];
    for frame in frames {
        for length in 1..frame.len() {
            let end = &frame[..length];
            let start = vec![0; DATAGRAM - HEADER - 16 - length];
            assert!(is_unreadable(&[&start, end].concat()), "{end:?}");
        }
        assert!(!is_unreadable(&frame), "{frame:?}");
    }
}

#[test]
fn a_datagram_with_any_byte_changed_is_unreadable() {
    let datagram = initial(ID, 0).datagram(&crypto(0, &hello("example.com", 600)));
    let mut flow = QuicFlow::default();
    for at in 0..datagram.len() {
        let mut changed = datagram.clone();
        changed[at] ^= 0x10;
        assert_eq!(flow.look(&changed), Look::Unreadable, "{at}");
    }
}

#[test]
fn a_second_connection_on_the_flow_is_judged_again() {
    let mut flow = open(&hello("good.example", 600));
    let evil = hello("evil.example", 1600);
    assert_eq!(flow.look(&initial(OTHER, 0).datagram(&crypto(0, &evil[..900]))), Look::More);
    // The first goes on.
    assert_eq!(flow.look(&initial(ID, 1).datagram(&[1])), Look::Passes);
    let look = flow.look(&initial(OTHER, 1).datagram(&crypto(900, &evil[900..])));
    assert_eq!(look, Look::ClientHello(evil));
}

#[test]
fn a_client_hello_after_a_retry_is_judged_again() {
    let hello = hello("example.com", 600);
    let mut flow = open(&hello);
    let again = Initial { token: b"token", ..initial(THIRD, 1) };
    let look = flow.look(&again.datagram(&crypto(0, &hello)));
    assert_eq!(look, Look::ClientHello(hello));
}

#[test]
fn keys_stay_when_the_server_chooses_its_connection_id() {
    let mut flow = open(&hello("example.com", 600));
    for to in [SERVERS, &[], OTHER] {
        let acknowledges = Initial { to, ..initial(ID, 1) };
        assert_eq!(flow.look(&acknowledges.datagram(&[2, 0, 0, 0, 0])), Look::Passes);
        // Servers need no long datagram for it.
        assert_eq!(flow.look(&acknowledges.packet(&[2, 0, 0, 0, 0])), Look::Passes);
    }
    // The server's connection ID gives no keys by itself.
    assert_eq!(flow.look(&initial(SERVERS, 1).datagram(&[1])), Look::Unreadable);
}

#[test]
fn a_client_hello_after_a_hello_retry_request_is_judged() {
    let first = hello("good.example", 500);
    let second = hello("evil.example", 700);
    let mut flow = open(&first);
    let to_server = Initial { to: SERVERS, ..initial(ID, 1) };
    assert_eq!(flow.look(&to_server.datagram(&crypto(500, &second[..300]))), Look::More);
    let look = flow.look(&to_server.datagram(&crypto(800, &second[300..])));
    assert_eq!(look, Look::ClientHello(second));
    assert_eq!(flow.look(&to_server.datagram(&crypto(0, &first))), Look::Passes);
}

#[test]
fn two_client_hellos_in_a_datagram_are_unreadable() {
    let [first, second] = ["good.example", "evil.example"].map(|name| hello(name, 400));
    let both = [first.clone(), second.clone()].concat();
    assert!(is_unreadable(&crypto(0, &both)));
    let mut frames = crypto(400, &second);
    frames.resize(DATAGRAM, 0);
    let packets = [initial(ID, 0).packet(&crypto(0, &first)), initial(ID, 1).packet(&frames)];
    assert_eq!(QuicFlow::default().look(&packets.concat()), Look::Unreadable);
}

#[test]
fn the_version_may_change_during_a_handshake() {
    let good = hello("good.example", 600);
    let mut flow = open(&good);
    let changed = Initial { version: Version::Two, to: SERVERS, ..initial(ID, 1) };
    assert_eq!(flow.look(&changed.datagram(&crypto(0, &good))), Look::Passes);
    let evil = hello("evil.example", 600);
    assert_eq!(flow.look(&changed.datagram(&crypto(0, &evil))), Look::Unreadable);
}

#[test]
fn unknown_versions_version_negotiation_and_retries_are_unreadable() {
    let mut flow = open(&hello("example.com", 600));
    for version in [0, 2, 0xff00_001d, 0x0a0a_0a0a] {
        assert_eq!(flow.look(&long(0xc0, version, ID)), Look::Unreadable, "{version:#x}");
    }
    assert_eq!(flow.look(&long(0xf0, 1, ID)), Look::Unreadable);
    assert_eq!(flow.look(&long(0xc0, 0x6b33_43cf, ID)), Look::Unreadable);
}

#[test]
fn what_needs_keys_passes_after_a_client_hello_alone() {
    let mut flow = QuicFlow::default();
    let hello = hello("example.com", 1600);
    let needs_keys = [SHORT.to_vec(), handshake(ID), zero_rtt(ID)];
    for datagram in &needs_keys {
        assert_eq!(flow.look(datagram), Look::Unreadable);
    }
    assert_eq!(flow.look(&initial(ID, 0).datagram(&crypto(0, &hello[..900]))), Look::More);
    for datagram in &needs_keys[..2] {
        assert_eq!(flow.look(datagram), Look::Unreadable);
    }
    let look = flow.look(&initial(ID, 1).datagram(&crypto(900, &hello[900..])));
    assert_eq!(look, Look::ClientHello(hello));
    for datagram in &needs_keys {
        assert_eq!(flow.look(datagram), Look::Passes);
    }
}

#[test]
fn early_data_waits_with_the_client_hello() {
    let hello = hello("example.com", 1600);
    let mut flow = QuicFlow::default();
    let mut frames = crypto(0, &hello[..900]);
    frames.resize(1130, 0);
    let first = [initial(ID, 0).packet(&frames), zero_rtt(ID)].concat();
    assert_eq!(flow.look(&first), Look::More);
    assert_eq!(flow.look(&zero_rtt(ID)), Look::More);
    let look = flow.look(&initial(ID, 1).datagram(&crypto(900, &hello[900..])));
    assert_eq!(look, Look::ClientHello(hello.clone()));
    assert_eq!(flow.look(&zero_rtt(ID)), Look::Passes);
    assert_eq!(flow.look(&zero_rtt(SERVERS)), Look::Passes);
    // Another connection has its own.
    assert_eq!(flow.look(&initial(OTHER, 0).datagram(&crypto(0, &hello[..900]))), Look::More);
    assert_eq!(flow.look(&zero_rtt(OTHER)), Look::More);
    assert_eq!(flow.look(&zero_rtt(ID)), Look::Passes);
}

#[test]
fn packets_of_a_datagram_have_one_destination() {
    let mut flow = open(&hello("example.com", 600));
    let acknowledges = Initial { to: SERVERS, ..initial(ID, 1) }.packet(&[2, 0, 0, 0, 0]);
    let same = [acknowledges.clone(), handshake(SERVERS), SHORT.to_vec()].concat();
    assert_eq!(flow.look(&same), Look::Passes);
    let other = [acknowledges, handshake(ID)].concat();
    assert_eq!(flow.look(&other), Look::Unreadable);
}

#[test]
fn packets_of_a_datagram_are_of_one_connection() {
    let mut flow = open(&hello("example.com", 600));
    let theirs = initial(OTHER, 0).datagram(&crypto(0, &hello("other.example", 1100)));
    let ours = Initial { to: OTHER, ..initial(ID, 1) }.datagram(&[1]);
    for datagram in [[&theirs[..], &ours], [&ours[..], &theirs]] {
        assert_eq!(flow.look(&datagram.concat()), Look::Unreadable);
    }
}

#[test]
fn what_fills_a_datagram_does_not_matter() {
    let hello = hello("example.com", 600);
    let mut datagram = initial(ID, 0).packet(&crypto(0, &hello));
    datagram.resize(DATAGRAM, 0);
    assert_eq!(QuicFlow::default().look(&datagram), Look::ClientHello(hello.clone()));
    // Another packet does.
    let full = initial(ID, 0).datagram(&crypto(0, &hello));
    for other in [vec![0xc0], long(0xc0, 2, ID), handshake(&[])] {
        let both = [&full[..], &other].concat();
        assert_eq!(QuicFlow::default().look(&both), Look::Unreadable);
    }
}

#[test]
fn the_fixed_bit_may_be_clear_after_a_client_hello_alone() {
    let hello = hello("example.com", 600);
    let clear = Initial { bits: 0x40, ..initial(ID, 0) }.datagram(&crypto(0, &hello));
    assert_eq!(QuicFlow::default().look(&clear), Look::Unreadable);
    assert_eq!(QuicFlow::default().look(&[0; 40]), Look::Unreadable);
    let mut flow = open(&hello);
    assert_eq!(flow.look(&clear), Look::Passes);
    assert_eq!(flow.look(&[0; 40]), Look::Passes);
}

#[test]
fn a_part_of_a_client_hello_in_a_short_datagram_is_unreadable() {
    let packet = initial(ID, 0).packet(&crypto(0, &hello("example.com", 600)));
    assert_eq!(QuicFlow::default().look(&packet), Look::Unreadable);
}

#[test]
fn a_first_destination_that_is_too_short_is_unreadable() {
    let hello = hello("example.com", 600);
    let datagram = initial(&ID[..7], 0).datagram(&crypto(0, &hello));
    assert_eq!(QuicFlow::default().look(&datagram), Look::Unreadable);
    let datagram = long(0xc0, 1, &[7; 21]);
    assert_eq!(QuicFlow::default().look(&datagram), Look::Unreadable);
}

#[test]
fn other_frames_and_bits_are_unreadable() {
    for kind in (4..=255).filter(|kind| ![6, 0x1c].contains(kind)) {
        assert!(is_unreadable(&[kind; 64]), "{kind}");
    }
    // A type that is longer than it need be.
    assert!(is_unreadable(&[0x40, 6, 0, 1, 1]));
    let empty = [initial(ID, 0).packet(&[]), initial(ID, 1).datagram(&[])].concat();
    assert_eq!(QuicFlow::default().look(&empty), Look::Unreadable);
    for bits in [4, 8] {
        let datagram = Initial { bits, ..initial(ID, 0) }.datagram(&[1]);
        assert_eq!(QuicFlow::default().look(&datagram), Look::Unreadable);
    }
}

#[test]
fn another_message_than_a_client_hello_is_unreadable() {
    let mut other = hello("example.com", 600);
    other[0] = 2;
    assert!(is_unreadable(&crypto(0, &other)));
    let mut flow = open(&hello("example.com", 600));
    assert_eq!(flow.look(&initial(ID, 1).datagram(&crypto(600, &[20]))), Look::Unreadable);
}

#[test]
fn a_client_hello_that_is_too_long_is_unreadable() {
    assert!(!is_unreadable(&crypto(0, &[1, 0, 0x3f, 0xfc])));
    assert!(is_unreadable(&crypto(0, &[1, 0, 0x3f, 0xfd])));
    assert!(!is_unreadable(&crypto(0x3ffe, &[1])));
    assert!(is_unreadable(&crypto(0x3fff, &[1, 2])));
    // The greatest numbers there are.
    assert!(is_unreadable(&[&[6][..], &[0xff; 8], &[1, 1]].concat()));
    assert!(is_unreadable(&[&[6, 0][..], &[0xff; 8], &[1, 1]].concat()));
}

#[test]
fn a_packet_number_is_near_the_largest() {
    let hello = hello("example.com", 1000);
    let mut flow = QuicFlow::default();
    let mut look = Look::Unreadable;
    for (part, number) in (0..).zip((0..1000).step_by(100)) {
        let short = Initial { number_length: 1, ..initial(ID, number) };
        look = flow.look(&short.datagram(&crypto(part * 100, &hello[part * 100..][..100])));
        assert_ne!(look, Look::Unreadable, "{number}");
    }
    assert_eq!(look, Look::ClientHello(hello));
    // Too far ahead, from before, and behind the largest by little.
    let readable = [850, 1020, 1100, 1200, 1280, 1279].map(|number| (number, true));
    for (number, readable) in [(1030, false)].into_iter().chain(readable) {
        let short = Initial { number_length: 1, ..initial(ID, number) };
        assert_eq!(flow.look(&short.datagram(&[1])) == Look::Passes, readable, "{number}");
    }
}

#[test]
fn a_refused_connection_is_unreadable_and_others_go_on() {
    let mut flow = QuicFlow::default();
    let evil = initial(ID, 0).datagram(&crypto(0, &hello("evil.example", 600)));
    assert!(matches!(flow.look(&evil), Look::ClientHello(_)));
    flow.refuse();
    for datagram in [evil.clone(), SHORT.to_vec(), handshake(ID), zero_rtt(ID), zero_rtt(OTHER)] {
        assert_eq!(flow.look(&datagram), Look::Unreadable);
    }
    let good = initial(OTHER, 0).datagram(&crypto(0, &hello("good.example", 600)));
    assert!(matches!(flow.look(&good), Look::ClientHello(_)));
    assert_eq!(flow.look(SHORT), Look::Passes);
    for datagram in [evil.clone(), zero_rtt(ID)] {
        assert_eq!(flow.look(&datagram), Look::Unreadable);
    }
    let mut flow = QuicFlow::default();
    for datagram in [&good, &evil] {
        assert!(matches!(flow.look(datagram), Look::ClientHello(_)));
    }
    flow.refuse();
    assert_eq!(flow.look(&good), Look::Passes);
    assert_eq!(flow.look(&evil), Look::Unreadable);
}

#[test]
fn a_forgotten_connection_does_not_begin_again() {
    let first = hello("example.com", 600);
    let mut flow = open(&first);
    let ids: Vec<[u8; 8]> = (0..9).map(|byte| [byte; 8]).collect();
    for id in &ids[..8] {
        let look = flow.look(&initial(id, 0).datagram(&crypto(0, &first)));
        assert_eq!(look, Look::ClientHello(first.clone()));
    }
    // The server may have parts of it, which other parts would make another ClientHello of.
    let longer = initial(ID, 1).datagram(&crypto(0, &hello("example.com", 900)));
    assert_eq!(flow.look(&longer), Look::Unreadable);
    assert_eq!(flow.look(SHORT), Look::Passes);
    let another = flow.look(&initial(&ids[8], 0).datagram(&crypto(0, &first)));
    assert_eq!(another, Look::ClientHello(first));
}

#[test]
fn a_flow_holds_a_bounded_number_of_bytes() {
    let mut flow = open(&hello("example.com", 600));
    for id in 0..4u8 {
        let far = initial(&[id; 8], 0).datagram(&crypto(8000, &[1]));
        assert_eq!(flow.look(&far), Look::More);
    }
    // Two have room.
    for (id, readable) in [(0u8, false), (1, false), (2, true), (3, true)] {
        let look = flow.look(&initial(&[id; 8], 1).datagram(&[1]));
        assert_eq!(look != Look::Unreadable, readable, "{id}");
    }
    // What a forgotten connection sends with other keys passes.
    assert_eq!(flow.look(SHORT), Look::Passes);
}

/// Multiplies in the field of GHASH (NIST SP 800-38D section 6.3).
fn times(left: u128, right: u128) -> u128 {
    let (mut product, mut factor) = (0, right);
    for bit in (0..128).rev() {
        if left >> bit & 1 == 1 {
            product ^= factor;
        }
        factor = factor >> 1 ^ if factor & 1 == 1 { 0xe1 << 120 } else { 0 };
    }
    product
}

/// The inverse in the field of GHASH.
fn inverse(number: u128) -> u128 {
    let (mut result, mut power) = (1 << 127, number);
    for _ in 1..128 {
        power = times(power, power);
        result = times(result, power);
    }
    result
}

/// The tag of GCM (NIST SP 800-38D section 7.1), and the factor of the block `free` in it.
fn tag(keys: &Keys, number: u64, header: &[u8], payload: &[u8], free: usize) -> (u128, u128) {
    let encrypt = |block: [u8; 16]| {
        let mut block = block.into();
        Aes128::new(&keys.key.into()).encrypt_block(&mut block);
        u128::from_be_bytes(block.into())
    };
    let subkey = encrypt([0; 16]);
    let mut counter = [0; 16];
    counter[..12].copy_from_slice(&keys.nonce(number));
    counter[15] = 1;
    let padded = |bytes: &[u8]| {
        let block = |chunk: &[u8]| {
            let mut block = [0; 16];
            block[..chunk.len()].copy_from_slice(chunk);
            u128::from_be_bytes(block)
        };
        bytes.chunks(16).map(block).collect::<Vec<_>>()
    };
    let mut blocks = padded(header);
    let free = blocks.len() + free;
    blocks.extend(padded(payload));
    blocks.push((header.len() as u128 * 8) << 64 | (payload.len() as u128 * 8));
    let sum = blocks.iter().fold(0, |sum, block| times(sum ^ block, subkey));
    let factor = blocks[free..].iter().fold(1 << 127, |factor, _| times(factor, subkey));
    (sum ^ encrypt(counter), factor)
}

/// AES-GCM does not commit to its key: one block of the ciphertext can be chosen so that two keys
/// have the same tag.
#[test]
fn a_packet_that_two_keys_open_is_unreadable() {
    let evil = hello("evil.example", 1000);
    let theirs = Keys::client(Version::One, OTHER).unwrap();
    let ours = Keys::client(Version::One, ID).unwrap();
    let made = initial(OTHER, 0);
    let mut packet = made.datagram(&crypto(0, &evil));
    // What this header is with the other keys.
    let seen_by_ours = |packet: &[u8]| {
        let (mask, masks) = ours.mask(*packet[HEADER..].first_chunk().unwrap());
        let first = packet[0] ^ mask;
        let length = usize::from(first & 3) + 1;
        let mut header = packet[..18 + length].to_vec();
        header[0] = first;
        let mut number = 0;
        for (byte, mask) in header[18..].iter_mut().zip(masks) {
            *byte ^= mask;
            number = number << 8 | u64::from(*byte);
        }
        (header, number)
    };
    // Both must see packet numbers of 4 bytes, so that the blocks are the same.
    let mut frames = crypto(0, &evil);
    frames.push(0);
    for pings in 0.. {
        packet = made.datagram(&[&vec![1; pings][..], &frames].concat());
        if seen_by_ours(&packet).0.len() == HEADER {
            break;
        }
    }
    let (their_header, (our_header, our_number)) = (made.header(1162), seen_by_ours(&packet));
    let end = DATAGRAM - 16;
    let free = 20;
    let at = HEADER + free * 16;
    packet[at..at + 16].fill(0);
    let payload = &packet[HEADER..end];
    let (their_tag, their_factor) = tag(&theirs, 0, &their_header, payload, free);
    let (our_tag, our_factor) = tag(&ours, our_number, &our_header, payload, free);
    let block = times(their_tag ^ our_tag, inverse(their_factor ^ our_factor));
    packet[at..at + 16].copy_from_slice(&block.to_be_bytes());
    let tag = tag(&theirs, 0, &their_header, &packet[HEADER..end], free).0;
    packet[end..].copy_from_slice(&tag.to_be_bytes());

    assert!(matches!(QuicFlow::default().look(&packet), Look::ClientHello(_)));
    // One is remembered, then both are.
    let mut flow = open(&hello("good.example", 600));
    assert_eq!(flow.look(&packet), Look::Unreadable);
    assert_eq!(flow.look(&initial(OTHER, 1).datagram(&[1])), Look::More);
    assert_eq!(flow.look(&packet), Look::Unreadable);
}
