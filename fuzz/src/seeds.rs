//! The seeds of the corpus: valid inputs of each target, each with every length and offset one too
//! small, one too large and at its limits, and cut short; and whole conversations.
//!
//! `cargo test -p pagewire-sim --test suite corpus` replays them all; with `-- --ignored` it also writes
//! them to `fuzz/target/seeds`, for a corpus made anew.

mod calls;
mod gateway_seeds;
mod guests;
mod packets;
mod ring_seeds;
mod text_seeds;

use packets::*;

/// Target, name and input of every seed.
pub(crate) fn all() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut add = |target, name: &str, inputs: Vec<Vec<u8>>| {
        for (i, input) in inputs.into_iter().enumerate() {
            seeds.push((target, format!("{name}-{i}"), input));
        }
    };
    let tcp_options = hex("02040 5b4 0402 080a 00000001 00000002 01 030307 00");
    let tcp_sack = hex("0101 080a 00000001 00000002 0101 0512 00000010 00000020 00000030 00000040");
    let quote4 = ipv4(PEER_V4, 6, 0, &tcp(80, 4000, 1, 0, 2, &[], b"")[..8]);
    let quote6 = ipv6(PEER_V6, 6, &tcp(80, 4000, 1, 0, 2, &[], b"")[..8]);
    let udp_packet = udp(4000, 53, b"question");
    let ndp_ask = ndp(135, 0, OUR_V6, Some(1));
    let ndp_tell = ndp(136, 0xe0, PEER_V6, Some(2));
    let ip_options = ipv4_with(&hex("0704 04 00 94040000 01 01 01 00"), 17, 0x4000, &udp_packet);

    add("ring_words", "programs", ring_seeds::rings());
    add(
        "ethernet",
        "types",
        ["0800", "0806", "86dd", "8100", "88a8", "05ff", "0600"]
            .map(|ty| [&OURS[..], &PEER, &hex(ty), b"payload"].concat())
            .to_vec(),
    );
    add("ethernet", "cut", prefixes(&[&OURS[..], &PEER, &[8, 0]].concat()));
    add("arp", "request", bent(&arp(1), &[(0, 2), (2, 2), (4, 1), (5, 1), (6, 2)]));
    add("arp", "reply", prefixes(&arp(2)));
    for (name, packet) in [("udp", ipv4(PEER_V4, 17, 0, &udp_packet)), ("options", ip_options)] {
        let mended = |mut packet: Vec<u8>| {
            mend(&mut packet);
            packet
        };
        let fields = [(0, 1), (2, 2), (6, 2), (21, 1), (25, 1)];
        add("ipv4", name, bent(&packet, &fields).into_iter().map(mended).collect());
        add("ipv4", name, vec![packet]);
    }
    let extensions = [
        hex("3a00 0502 0000 0100"),
        hex("1101 0104 00000000 c2040000 0000 0000"),
        hex("2c00 0104 00000000"),
        hex("1100 0009 00000007"),
        hex("1100 0000 00000007"),
    ];
    add("ipv6", "header", bent(&ipv6(PEER_V6, 17, &udp_packet), &[(0, 1), (4, 2), (6, 1)]));
    for extension in &extensions {
        add("ipv6", "extension", bent(extension, &[(0, 1), (1, 1), (2, 2), (3, 1)]));
    }
    for quote in [&quote4, &quote6] {
        let message = |kind: u8, code| [&[kind, code, 0, 0, 0, 0, 5, 0][..], quote].concat();
        add("icmp", "error", vec![message(3, 4), message(2, 0), message(1, 4), message(12, 1)]);
        add("icmp", "quote", bent(quote, &[(0, 1), (2, 2), (6, 2), (9, 1)]));
        add(
            "icmp",
            "cut",
            [19, 20, 27, 39, 40, 47].map(|n| quote[..n.min(quote.len())].to_vec()).to_vec(),
        );
    }
    add("icmp", "echo", bent(&icmp(8, 0, 0x0001_0001, b"ping"), &[(0, 1)]));
    for message in [&ndp_ask, &ndp_tell] {
        add("ndp", "message", bent(message, &[(1, 1), (4, 1), (24, 1), (25, 1)]));
        add(
            "ndp",
            "options",
            vec![
                [&message[..], &message[24..]].concat(),
                message[..31].to_vec(),
                message[..24].to_vec(),
            ],
        );
    }
    add("udp", "datagram", bent(&udp_packet, &[(0, 2), (2, 2), (4, 2)]));
    add("udp", "cut", prefixes(&udp_packet[..8]));
    for (name, options) in [("syn", &tcp_options), ("sack", &tcp_sack), ("plain", &Vec::new())] {
        let header = tcp(4000, 80, 1, 2, 0x12, options, b"data");
        add(
            "tcp_header",
            name,
            bent(&header, &[(12, 1), (13, 1), (20, 1), (21, 1), (25, 1), (29, 1), (36, 1)]),
        );
        add("tcp_header", name, vec![header[..20].to_vec(), header[..19].to_vec()]);
    }
    add("tap_frame", "frames", tap_frames());
    add("frames_stream", "pieces", gateway_seeds::streams());
    add("frames_datagram", "senders", gateway_seeds::datagrams());
    add("cidr", "text", text_seeds::cidrs());
    add("fault_spec", "text", text_seeds::fault_specs());
    let guests = guests::seeds(&frame4(17, &udp(1, 53, b"question")));
    guests.into_iter().for_each(|(target, name, inputs)| add(target, name, inputs));
    add("tcp_connection", "life", lives());
    let _ = ["stack_frames", "gateway_frames"].map(|to| add(to, "talk", conversations()));
    add("posix_calls", "program", calls::calls());
    add("dns_message", "exchange", gateway_seeds::exchanges());
    add("autoconf", "guest", gateway_seeds::guests());
    seeds
}

// ---- conversations ----

/// Checksum valid, MAC ours, IPv4 header mended.
const PLAIN: u8 = 0x49;
/// And numbers follow.
const FOLLOW: u8 = PLAIN | 0x10;
/// And the port is that of our connection.
const CONNECT: u8 = FOLLOW | 0x20;
/// Verbs.
const VERBS: u8 = 0x80;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
const URG: u8 = 32;

fn conversations() -> Vec<Vec<u8>> {
    let options = hex("020405b4 0402 080a 00000001 00000000 01 030307");
    let stamps = |n: u8| [&hex("0101080a 000000")[..], &[n], &[0; 4]].concat();
    let sack = |left: i32, right: i32| {
        [&[1, 1, 5, 10][..], &left.to_be_bytes(), &right.to_be_bytes()].concat()
    };
    // Both are known to the stack, in both versions, and one connection is open.
    let arp_reply = record(PLAIN, &[&OURS[..], &PEER, &[8, 6], &arp(2)].concat());
    let neighbor = record(PLAIN, &frame6(58, &ndp(135, 0, OUR_V6, Some(1))));
    let hello = [arp_reply.clone(), neighbor].concat();
    let to_80 = |seq: u32, flags, opts: &[u8], data: &[u8]| {
        record(FOLLOW, &frame4(6, &tcp(4000, 80, seq, 0, flags, opts, data)))
    };
    let to_80_six = |seq: u32, flags, opts: &[u8], data: &[u8]| {
        record(FOLLOW, &frame6(6, &tcp(4000, 80, seq, 0, flags, opts, data)))
    };
    let to_us = |seq: u32, ack: u32, flags, opts: &[u8], data: &[u8]| {
        record(CONNECT, &frame4(6, &tcp(9, 0, seq, ack, flags, opts, data)))
    };
    let later = |ms_shift: u8| record(VERBS, &[8, 0, ms_shift, 0]);
    let verb =
        |verb, which, n: u16| record(VERBS, &[&[verb, which][..], &n.to_be_bytes()].concat());
    let accepted =
        [hello.clone(), to_80(1000, SYN, &options, b""), to_80(1001, ACK, &stamps(2), b"")]
            .concat();
    let connected = [
        hello.clone(),
        to_us(500, 0, SYN | ACK, &[2, 4, 5, 180, 4, 2, 3, 3, 7, 0, 0, 0], b""),
        later(0),
    ]
    .concat();
    let bulk = [7; 1400];
    // By the second link, from who is there.
    let second = |mut record: Vec<u8>| {
        record[1] |= 0x80;
        record
    };
    let across = |flags: u8, len: usize| {
        let mut packet = ipv4(PEER_V4, 17, 0, &udp(4000, 4000, &vec![7; len]));
        (packet[6], packet[8]) = (flags, 64);
        packet[16..20].copy_from_slice(&[10, 0, 1, 9]);
        mend(&mut packet);
        record(PLAIN, &ether(&[8, 0], &packet))
    };
    let there = [2, 0, 0, 0, 0, 9];
    let asked = hex("0001 0800 0604 0002 020000000009 0a000109 020000000003 0a000101");
    let answer = [&OURS[..], &there, &[8, 6], &asked].concat();

    let mut all: Vec<Vec<Vec<u8>>> = vec![
        // Forwarded: one waits for a neighbour, one is fragmented, one must not be.
        vec![
            hello.clone(),
            across(0, 100),
            second(record(PLAIN, &answer)),
            across(0, 1400),
            across(0x40, 1400),
            across(0x40, 100),
            later(17),
        ],
        // A request, an answer, and both close.
        vec![
            accepted.clone(),
            to_80(1001, PSH | ACK, &stamps(3), b"GET / HTTP/1.1\r\n\r\n"),
            to_80(1019, ACK, &stamps(4), b""),
            to_80(1019, FIN | ACK, &stamps(5), b""),
            verb(1, 1, 0),
            to_80(1020, ACK, &stamps(6), b""),
            later(17),
        ],
        // We close first; TIME-WAIT, a new SYN in it.
        vec![
            accepted.clone(),
            verb(1, 1, 0),
            to_80(1001, ACK, &stamps(3), b""),
            to_80(1001, FIN | ACK, &stamps(4), b""),
            to_80(900_000, SYN, &options, b""),
            to_80(900_001, ACK, &stamps(9), b""),
            later(17),
        ],
        // Both at once.
        vec![
            accepted.clone(),
            verb(3, 1, 0),
            to_80(1001, FIN | ACK, &stamps(3), b""),
            to_80(1002, ACK, &stamps(4), b""),
        ],
        // Out of order, overlapping, twice, then a reset.
        vec![
            accepted.clone(),
            to_80(3001, ACK, &stamps(3), &bulk),
            to_80(2001, ACK, &stamps(3), &bulk),
            to_80(1001, ACK, &stamps(4), &bulk),
            to_80(1001, ACK, &stamps(4), &bulk),
            to_80(4401, PSH | ACK, &stamps(4), b"end"),
            to_80(9999, RST, &[], b""),
            to_80(4404, RST, &[], b""),
        ],
        // The application does not read: the window closes; probes; then it reads.
        vec![
            accepted.clone(),
            verb(7, 0, 0),
            (0..50).flat_map(|i| to_80(1001 + i * 1400, ACK, &stamps(3), &bulk)).collect(),
            later(9),
            to_80(71_001, ACK, &stamps(4), b"x"),
            verb(7, 0, 0),
            verb(10, 1, 60_000),
            later(9),
        ],
        // We send; losses by SACK, by duplicates, by timeout; a zero window.
        vec![
            accepted.clone(),
            verb(0, 1, 60_000),
            to_80(1001, ACK, &[&stamps(3)[..], &sack(-1000, 0)].concat(), b""),
            to_80(1001, ACK, &[&stamps(3)[..], &sack(-3000, -1000)].concat(), b""),
            later(9),
            to_80(1001, ACK, &stamps(5), b""),
            later(10),
            later(12),
            to_80(1001, ACK, &stamps(6), b""),
        ],
        // A connection of ours: established, data both ways, the peer resets.
        vec![
            connected.clone(),
            verb(0, 0, 3000),
            to_us(501, 0, ACK, &[], b""),
            to_us(501, 0, PSH | ACK, &[], b"hello"),
            to_us(506, 0, RST | ACK, &[], b""),
        ],
        vec![
            connected.clone(),
            verb(0, 0, 30_000),
            to_us(501, u32::MAX - 30_000, ACK, &[], b""),
            to_us(501, 0, ACK, &sack(-1448, 0), b""),
            to_us(501, 0, FIN | ACK, &[], b""),
            verb(3, 0, 0),
            to_us(502, 0, ACK, &[], b""),
        ],
        // Zero copy with notifications, in pieces and joined; urgent data; corks and records.
        vec![
            accepted.clone(),
            verb(0x85, 1, 0),
            verb(0xb6, 1, 9000),
            verb(0x96, 1, 100),
            verb(0x97, 1, 50_000),
            to_80(1001, ACK, &stamps(3), b""),
            to_80(1001, ACK, &stamps(4), b""),
            to_80(1001, FIN | ACK, &stamps(5), b""),
            verb(3, 1, 0),
            to_80(1002, ACK, &stamps(6), b""),
        ],
        vec![
            accepted.clone(),
            verb(0x80, 1, 0x0402),
            verb(0x80, 1, 0x0101),
            verb(0x81, 1, 0x1a03),
            verb(7, 0, 0),
            to_80(1001, URG | ACK, &stamps(3), b"urgent"),
            verb(0x8a, 1, 0),
            verb(0x84, 1, 0x0100),
            verb(0x82, 1, 0x0101),
            verb(0x83, 1, 0x0210),
            verb(0x84, 1, 0),
            verb(0x8d, 1, 1000),
            verb(0xed, 1, 500),
            verb(0xbd, 0x81, 0),
            later(12),
        ],
        // A datagram that completes.
        vec![hello.clone(), verb(0x85, 3, 0), verb(0x88, 3, 0x1010), later(2)],
        // Fast Open without a cookie, and with an option that asks for one.
        vec![
            hello.clone(),
            verb(0xcd, 1, 5),
            verb(0xdd, 1, 0),
            to_80(1000, SYN, &hex("020405b4 0402 2202"), b"GET /"),
            to_80(1006, ACK, &[], b"more"),
            later(10),
        ],
        // Refused, simultaneous open, acknowledgement of nothing, unanswered.
        vec![hello.clone(), to_us(0, 0, RST | ACK, &[], b"")],
        vec![hello.clone(), to_us(500, 0, SYN, &options, b""), to_us(501, 0, ACK, &[], b"data")],
        vec![hello.clone(), to_us(500, 9, SYN | ACK, &options, b""), to_us(500, 9, ACK, &[], b"")],
        vec![
            hello.clone(),
            later(10),
            later(11),
            later(12),
            later(13),
            later(14),
            later(15),
            later(16),
            later(17),
        ],
        vec![later(10), later(11), later(12), later(17)],
        // SYN floods, no listener, urgent data, no flags, all flags.
        vec![
            hello.clone(),
            (0..40)
                .flat_map(|i| {
                    record(PLAIN, &frame4(6, &tcp(5000 + i, 80, 7, 0, SYN, &options, b"")))
                })
                .collect(),
            later(12),
        ],
        vec![
            hello.clone(),
            record(PLAIN, &frame4(6, &tcp(4000, 81, 7, 0, SYN, &[], b""))),
            record(PLAIN, &frame4(6, &tcp(4000, 81, 7, 9, ACK, &[], b"x"))),
            record(PLAIN, &frame6(6, &tcp(4000, 81, 7, 9, FIN, &[], b"x"))),
        ],
        vec![
            accepted.clone(),
            to_80(1001, URG | ACK, &stamps(3), b"urgent"),
            to_80(1007, 0, &stamps(3), b""),
            to_80(1007, 0xff, &stamps(3), b""),
        ],
        // PAWS, challenge acknowledgements, a SYN in the middle.
        vec![
            accepted.clone(),
            to_80(1001, ACK, &hex("0101080a f0000000 00000000"), b"old"),
            to_80(1001, SYN, &options, b""),
            to_80(1001, ACK, &[], b"no timestamps"),
            record(FOLLOW, &frame4(6, &tcp(4000, 80, 1001, 70_000, ACK, &stamps(4), b""))),
        ],
        // Both over IPv6.
        vec![
            hello.clone(),
            to_80_six(1000, SYN, &options, b""),
            to_80_six(1001, ACK, &stamps(2), b""),
            to_80_six(1001, PSH | ACK, &stamps(3), &bulk),
            to_80_six(2401, FIN | ACK, &stamps(4), b""),
        ],
        vec![
            hello.clone(),
            verb(12, 0, 9),
            record(CONNECT, &frame6(6, &tcp(9, 0, 500, 0, SYN | ACK, &options, b""))),
            verb(0, 1, 5000),
            record(CONNECT, &frame6(6, &tcp(9, 0, 501, 0, ACK, &stamps(3), b""))),
        ],
        // Keep-alive, cork, options.
        vec![
            connected.clone(),
            verb(9, 0, 0x0002),
            later(12),
            later(17),
            later(17),
            to_us(501, 0, ACK, &[], b""),
        ],
        vec![
            connected.clone(),
            verb(9, 0, 0x0001),
            verb(0, 0, 100),
            later(8),
            verb(9, 0, 0x0101),
            verb(9, 0, 4),
            verb(9, 0, 5),
        ],
        vec![connected.clone(), verb(4, 0, 0)],
        // UDP both ways, large, to a closed port, with errors.
        vec![
            hello.clone(),
            record(PLAIN, &frame4(17, &udp(4000, 53, b"question"))),
            record(PLAIN, &frame6(17, &sum6(udp(4000, 53, b"question"), 6, 17))),
            verb(6, 0, 100),
            verb(6, 1, 100),
            verb(6, 0, 9000),
            verb(6, 1, 9000),
            record(PLAIN, &frame4(17, &udp(4000, 54, b"nobody"))),
        ],
        vec![
            hello.clone(),
            verb(13, 0, 1000),
            verb(6, 0, 100),
            record(PLAIN, &frame4(1, &icmp(3, 3, 0, &ipv4_from_us(17, &udp(53, 1000, b"x"))))),
            verb(6, 0, 5),
        ],
        // Echo, and what is wrong with it.
        vec![
            hello.clone(),
            record(PLAIN, &frame4(1, &icmp(8, 0, 0x0001_0001, b"ping"))),
            record(0x40, &frame4(1, &sum4(icmp(8, 0, 0x0001_0001, b"ping")))),
            record(PLAIN, &frame6(58, &icmp(128, 0, 1, b"ping"))),
            record(PLAIN, &frame4(1, &icmp(8, 0, 1, &bulk))),
            record(4 | PLAIN, &frame4(1, &icmp(8, 0, 1, &bulk))),
        ],
        // Neighbours: requests, answers, probes, conflicts.
        vec![
            record(PLAIN, &[&[0xff; 6][..], &PEER, &[8, 6], &arp(1)].concat()),
            arp_reply.clone(),
            later(15),
            later(10),
            later(10),
            later(10),
            verb(6, 0, 5),
            later(12),
        ],
        vec![
            record(PLAIN, &frame6(58, &ndp(135, 0, OUR_V6, Some(1)))),
            record(PLAIN, &frame6(58, &ndp(135, 0, OUR_V6, None))),
            verb(6, 1, 5),
            record(PLAIN, &frame6(58, &ndp(136, 0x60, PEER_V6, Some(2)))),
            record(PLAIN, &frame6(58, &ndp(136, 0x20, OUR_V6, Some(2)))),
            later(16),
            verb(6, 1, 5),
            later(10),
            later(10),
            later(10),
        ],
        vec![
            verb(5, 0, 0x0909),
            verb(6, 0, 100),
            later(10),
            later(11),
            later(12),
            verb(12, 0, 9),
            later(10),
            later(12),
        ],
    ];
    // ICMP errors that quote our SYN, or data of ours.
    for (kind, code, word) in [
        (3, 4, 576),
        (3, 4, 0),
        (3, 4, 67),
        (3, 1, 0),
        (3, 3, 0),
        (3, 2, 0),
        (11, 0, 0),
        (12, 0, 0),
        (4, 0, 0),
        (5, 0, 0),
    ] {
        let quote = |seq: i32| {
            let quoted = ipv4_from_us(6, &tcp(0, 9, seq as u32, 0, SYN, &[], b"")[..8]);
            record(CONNECT, &frame4(1, &icmp(kind, code, word, &quoted)))
        };
        all.push(vec![hello.clone(), quote(-1), later(10), later(11)]);
        all.push(vec![
            connected.clone(),
            verb(0, 0, 5000),
            quote(-1000),
            later(10),
            to_us(501, 0, ACK, &[], b""),
        ]);
    }
    for (kind, code, word) in
        [(2, 0, 1280), (2, 0, 100), (1, 4, 0), (1, 0, 0), (3, 0, 0), (4, 1, 6)]
    {
        let mut quoted = ipv6(OUR_V6, 6, &tcp(0, 9, u32::MAX, 0, SYN, &[], b""));
        quoted[24..40].copy_from_slice(&PEER_V6.octets());
        all.push(vec![
            hello.clone(),
            verb(12, 0, 9),
            record(CONNECT, &frame6(58, &icmp(kind, code, word, &quoted))),
            later(10),
        ]);
    }
    // Fragments: in order, backwards, overlapping, never complete, too long, tiny.
    let datagram = udp(4000, 53, &bulk);
    for pieces in [
        &[(0, 800, true), (800, 608, false)][..],
        &[(800, 608, false), (0, 800, true)],
        &[(0, 800, true), (792, 616, false)],
        &[(0, 800, true), (0, 800, true), (800, 608, false)],
        &[(0, 800, true)],
        &[(65_528, 608, false)],
        &[(0, 8, true), (8, 1400, false)],
        &[(0, 801, true)],
        &[(0, 800, true), (800, 600, false), (800, 608, false)],
        &[(0, 0, true)],
    ] {
        let four = pieces.iter().flat_map(|&(at, len, more)| {
            let field = (at / 8) as u16 | u16::from(more) << 13;
            let data = &datagram[at.min(datagram.len())..(at + len).min(datagram.len())];
            record(PLAIN, &ether(&[8, 0], &ipv4(PEER_V4, 17, field, data)))
        });
        all.push(vec![hello.clone(), four.collect(), later(15), later(10)]);
        let summed = sum6(datagram.clone(), 6, 17);
        let six = pieces.iter().flat_map(|&(at, len, more)| {
            let data = &summed[at.min(summed.len())..(at + len).min(summed.len())];
            let field = at as u16 | u16::from(more);
            record(
                PLAIN,
                &frame6(44, &[&[17, 0][..], &field.to_be_bytes(), &[0, 0, 0, 7], data].concat()),
            )
        });
        all.push(vec![hello.clone(), six.collect(), later(15), later(10)]);
    }
    // Extension headers: known ones, a chain, options to be reported, an unknown header.
    for chain in [
        "1100 0104 00000000",
        "1100 c204 00000000",
        "1100 8204 00000000",
        "1100 4204 00000000",
        "1101 0104 00000000",
        "1100 0109 00000000",
    ] {
        for next in [0, 60, 43] {
            all.push(vec![
                hello.clone(),
                record(PLAIN, &frame6(next, &[hex(chain), udp(4000, 53, b"x")].concat())),
            ]);
        }
    }
    all.push(vec![
        hello.clone(),
        record(PLAIN, &frame6(253, b"what")),
        record(PLAIN, &frame6(59, b"")),
        record(PLAIN, &frame4(253, b"what")),
    ]);
    // Every length of a frame that carries TCP, one off and at its ends.
    let whole = frame4(6, &tcp(4000, 80, 1000, 0, SYN, &options, b""));
    for frame in bent(&whole, &[(12, 2), (14, 1), (16, 2), (20, 2), (46, 1), (55, 1)]) {
        all.push(vec![hello.clone(), record(PLAIN, &frame), record(PLAIN | 4, &frame)]);
    }
    for cut in [0, 13, 14, 33, 34, 53, 54, 70] {
        all.push(vec![
            record(PLAIN, &whole[..cut.min(whole.len())]),
            record(PLAIN | 4, &whole[..cut.min(whole.len())]),
        ]);
    }
    all.into_iter().map(|records| records.concat()).collect()
}

/// Operations of `connection.rs`.
fn lives() -> Vec<Vec<u8>> {
    let ack: &[u8] = &[0x00, ACK];
    let data = |n: u16| [&[0x20, PSH | ACK][..], &n.to_be_bytes()].concat();
    let beyond = |distance: i16, n: u16| {
        [&[0x28, ACK][..], &distance.to_be_bytes(), &[0, 0], &n.to_be_bytes()].concat()
    };
    let behind = |distance: i16| [&[0x08, ACK, 0, 0][..], &distance.to_be_bytes()].concat();
    let sacked = |left: i16, len: u16| {
        [
            &[0x88, ACK, 0, 0][..],
            &(-4000i16).to_be_bytes(),
            &[64],
            &left.to_be_bytes(),
            &len.to_be_bytes(),
        ]
        .concat()
    };
    let write = |n: u16| [&[4][..], &n.to_be_bytes()].concat();
    let (read, chunks): (&[u8], &[u8]) = (&[5, 0xff, 0xff], &[13, 0xff, 0xff]);
    let (fin, rst, syn): (&[u8], &[u8], &[u8]) = (&[0, FIN | ACK], &[0, RST], &[0, SYN]);
    let (due, long): (&[u8], &[u8]) = (&[0x86], &[0x76]);
    let verb = |verb: u8| vec![7, verb];
    // With the peer's window scale and MSS in its SYN.
    let syn_ack: &[u8] = &[0x80, SYN | ACK, 7, 5, 180, 7];
    let lives: Vec<Vec<u8>> = vec![
        [ack, &data(1000)[..], read, &write(5000)[..], ack, fin, &verb(0)[..], ack].concat(),
        [ack, &data(1000), chunks, &verb(0), ack, &data(10), chunks, fin, long].concat(),
        [ack, &verb(2), fin, ack, long, long].concat(),
        [ack, &verb(2), &[8, FIN | ACK, 0, 0, 0xff, 0xff], ack, long, long].concat(),
        [
            ack,
            &beyond(1000, 1000),
            &beyond(3000, 1000),
            &beyond(500, 900),
            &data(800),
            read,
            &data(4000),
            chunks,
            read,
        ]
        .concat(),
        [
            ack,
            &write(40_000),
            &behind(-4000),
            &sacked(-2000, 2000),
            &sacked(-3000, 3000),
            due,
            ack,
            due,
            due,
            ack,
            &write(60_000),
            due,
            due,
            due,
            ack,
        ]
        .concat(),
        [ack, &write(9000), &[0x10, ACK, 0, 0], &write(9000), due, due, due, ack, due].concat(),
        [
            ack,
            &data(4999),
            &data(4999),
            &data(4999),
            &data(4999),
            &data(4999),
            due,
            chunks,
            due,
            rst,
        ]
        .concat(),
        [ack, syn, &beyond(-20, 50), &beyond(30_000, 10), &behind(3000), read, &[7, 3]].concat(),
        [
            ack,
            &[7, 11, 0x40, 0, 9],
            &[7, 7, 0xf0, 0, 2, 0],
            due,
            &[7, 10, 1, 0],
            ack,
            &[7, 9, 0xff, 0xff],
            &[7, 0x8b, 0x40, 0, 0],
            due,
            ack,
        ]
        .concat(),
        due.repeat(8),
        [ack, &[7, 0x86], long, long, long, due, due, due, due, due, due, due, due, due, due]
            .concat(),
        [ack, &data(100), due, &verb(1), &data(100), &verb(2), due].concat(),
    ];
    let mut all = Vec::new();
    // Everything that the second and the third byte choose, alone and together.
    for settings in (0..16).map(|bit| 1_u16 << bit).chain([0xffff, 0x00a4]) {
        let [two, three] = settings.to_be_bytes();
        let again: &[u8] = &[3];
        let urgent: &[u8] = &[0x20, URG | ACK, 0, 40, 0, 100];
        let sent = [&[4 | 4 << 3][..], &3000u16.to_be_bytes()].concat();
        let life = [
            ack,
            &sent,
            &write(9000),
            again,
            &sacked(-1000, 1000),
            again,
            urgent,
            again,
            &[0x15, 0, 50],
            &[7, 0xc8, 0],
            read,
            due,
            &[1, ACK | 0x40],
            &[2, ACK | 0x80],
            due,
            ack,
            fin,
            again,
            &verb(2),
        ];
        all.push([&[0x0e, two, three][..], &life.concat()].concat());
        all.push([&[0x0f, two, three][..], syn_ack, &life.concat()].concat());
    }
    for settings in [0x0e, 0x0c, 0x00, 0x9a, 0x76] {
        for life in &lives {
            all.push([&[settings, 0, 0][..], life].concat());
            all.push([&[settings | 1, 0, 0][..], syn_ack, life].concat());
        }
    }
    for start in [
        &[0, RST | ACK][..],
        &[0, SYN],
        &[8, SYN | ACK, 0, 0, 0, 9],
        &[0, ACK],
        &[0x20, SYN | ACK, 1, 0],
        &[0x20, SYN, 1, 0],
    ] {
        all.push([&[0x0f, 0, 0][..], start, ack, &data(100), read, fin, &verb(2), ack].concat());
    }
    all
}

/// Lengths little-endian, then the virtio header and the frame.
fn tap_frames() -> Vec<Vec<u8>> {
    let message = |vnet: [u8; 10], frame: &[u8]| {
        let len = (vnet.len() + frame.len()) as u16;
        [&len.to_le_bytes()[..], &vnet, frame].concat()
    };
    let plain = [0; 10];
    let gso = |flags, kind, header: u16, size: u16, start: u16, offset: u16| {
        let words = [header, size, start, offset].map(u16::to_ne_bytes).concat();
        let mut vnet = [flags, kind, 0, 0, 0, 0, 0, 0, 0, 0];
        vnet[2..].copy_from_slice(&words);
        vnet
    };
    let data = |seq, n| frame4(6, &tcp(4000, 80, seq, 0, ACK, &[], &vec![7; n]));
    let six = |n| frame6(6, &tcp(4000, 80, 1, 0, ACK, &[1; 12], &vec![7; n]));
    let (big, one) = (data(1, 3000), data(1, 100));
    let mut all = vec![
        message(plain, &one),
        // Steady, then a header of another length, then something else.
        [
            message(plain, &data(1, 1448)),
            message(plain, &data(1449, 1448)),
            message(plain, &six(1400)),
            message(plain, &frame4(17, &udp(1, 53, b"x"))),
        ]
        .concat(),
        [message(gso(1, 1, 54, 1448, 34, 16), &big), message(gso(1, 1, 54, 1448, 34, 16), &big)]
            .concat(),
        message(gso(1, 4, 86, 1428, 54, 16), &six(3000)),
        message(gso(1, 0x81, 54, 1448, 34, 16), &big),
        // Kinds that do not fit, sizes of 0, headers and checksums beyond the frame.
        message(gso(1, 4, 54, 1448, 34, 16), &big),
        message(gso(1, 3, 54, 1448, 34, 16), &big),
        message(gso(1, 1, 54, 0, 34, 16), &big),
        message(gso(0, 1, 54, 1448, 0, 0), &big),
        message(gso(1, 1, u16::MAX, 1448, 34, 16), &big),
        message(gso(2, 0, 0, 0, 0, 0), &one),
        message(gso(1, 0, 0, 0, 34, 16), &frame4(17, &udp(1, 53, b"x"))),
        vec![0, 0],
        vec![1, 0, 0],
        vec![9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        vec![0xff, 0xff, 1],
        message(plain, &[]),
        message(plain, &one[..13]),
        message(plain, &one[..14]),
        message(plain, &one[..53]),
    ];
    for (start, offset) in [(152, 0), (151, 1), (153, 0), (u16::MAX, u16::MAX), (154, 0)] {
        all.push(message(gso(1, 0, 0, 0, start, offset), &one));
    }
    all
}
