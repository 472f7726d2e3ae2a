//! Seeds of what a guest and a resolver send to a gateway.

use super::packets::*;

/// A query for an address, and its answer by way of an alias.
pub(crate) fn exchanges() -> Vec<Vec<u8>> {
    let question = hex("03777777 076578616d706c65 036f7267 00 0001 0001");
    let query = [hex("1234 0120 0001 0000 0000 0001"), question.clone()].concat();
    let query = [query, hex("00 0029 04d0 00000000 0000")].concat();
    let alias = hex("c00c 0005 0001 0000003c 0006 03 63646e c010");
    let address = hex("c02d 0001 0001 0000003c 0004 c0000201");
    let header = hex("1234 8180 0001 0002 0000 0000");
    let answer = [header, question, alias, address].concat();
    let both = |query: &[u8], answer: &[u8]| {
        [&(query.len() as u16).to_be_bytes()[..], query, answer].concat()
    };
    // Flags, counts, the first label, the type.
    let fields = [(2, 1), (3, 1), (4, 2), (6, 2), (10, 2), (12, 1), (29, 2), (31, 2)];
    let mut all: Vec<_> = bent(&query, &fields).iter().map(|q| both(q, &answer)).collect();
    let fields = [(2, 1), (3, 1), (4, 2), (6, 2), (12, 1), (33, 2), (43, 2), (45, 1), (49, 2)];
    all.extend(bent(&answer, &fields).iter().map(|answer| both(&query, answer)));
    all.extend(prefixes(&query).iter().map(|query| both(query, &answer)));
    all.extend(prefixes(&answer).iter().map(|answer| both(&query, answer)));
    all
}

/// Router solicitations and DHCPv6 messages.
pub(crate) fn guests() -> Vec<Vec<u8>> {
    let frame = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], &[62], bytes].concat();
    let solicitation = frame6(58, &hex("85000000 00000000 0101 020000000002"));
    let mut all: Vec<_> = bent(&solicitation, &[(18, 2), (21, 1), (54, 1), (55, 1), (63, 1)])
        .iter()
        .map(|bytes| frame(bytes))
        .collect();
    let client = "0001 000a 00030001 020000000002";
    let server = "0002 000a 00030001 020000000001";
    let association = "0003 0028 00000007 00000000 00000000 \
                       0005 0018 fd000002000000000000000000000015 00000000 00000000";
    for kind in 1..=12 {
        let options = match kind {
            1 | 4 | 6 => format!("{client} {association} 000e 0000"),
            11 => "0006 0002 0017".to_owned(),
            _ => format!("{client} {server} {association}"),
        };
        let message = [vec![kind, 1, 2, 3], hex(&options)].concat();
        let mut bytes = frame6(17, &udp(546, 547, &message));
        // From a link-local address, to all servers.
        bytes[22..38].copy_from_slice(&hex("fe80000000000000 0000000000000002"));
        bytes[38..54].copy_from_slice(&hex("ff02000000000000 0000000000010002"));
        all.extend(
            bent(&bytes, &[(18, 2), (58, 2), (62, 1), (66, 2), (68, 2)]).iter().map(|b| frame(b)),
        );
        all.extend(prefixes(&bytes).iter().map(|bytes| frame(bytes)));
    }
    let both = [frame(&solicitation), frame(&solicitation)].concat();
    all.push(both);
    all
}

/// Pieces of a stream, each behind its length; of no length: zeros.
pub(crate) fn streams() -> Vec<Vec<u8>> {
    let framed = |frame: &[u8]| [&(frame.len() as u32).to_be_bytes()[..], frame].concat();
    let pieces = |stream: &[u8], size: usize| {
        let piece = |piece: &[u8]| [&[piece.len() as u8][..], piece].concat();
        stream.chunks(size).flat_map(piece).collect::<Vec<u8>>()
    };
    let (one, two) = (frame4(17, &udp(1, 53, b"question")), frame6(17, &udp(1, 53, b"x")));
    let both = [framed(&one), framed(&two)].concat();
    let mut all: Vec<_> = [1, 3, 60, 255].map(|size| pieces(&both, size)).to_vec();
    for length in [0_u32, 13, 14, 1500, 4000, 65_553, 65_554, u32::MAX] {
        let stream = [&both[..], &length.to_be_bytes()].concat();
        all.push([pieces(&stream, 200), vec![0, 0, 4, 1, 2, 3, 4]].concat());
    }
    all
}

/// Datagrams, each behind its sender and its length.
pub(crate) fn datagrams() -> Vec<Vec<u8>> {
    let say = |who: u8, what: &[u8]| [&[who, what.len() as u8], what].concat();
    let (hello, frame) = (&b"VFKT"[..], &frame4(17, &udp(1, 53, b"question"))[..]);
    vec![
        [say(0, hello), say(0, frame), say(1, frame), say(2, frame)].concat(),
        [say(0, frame), say(2, hello), say(2, frame), say(1, hello), say(1, frame)].concat(),
        [say(0, hello), say(1, hello), say(0, frame), say(1, frame), say(1, b"short")].concat(),
        [say(0, hello), say(0, hello), say(0, b""), say(0, &[7; 255])].concat(),
    ]
}
