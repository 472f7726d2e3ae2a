//! Seeds of `ring_words`: whole programs, four bytes to a verb.

/// Memory is registered for a queue, connections are accepted, one is made and received on; data
/// comes by reference.
const BEGUN: &[[u8; 4]] = &[
    [12, 2, 4, 63],
    [0, 1, 0, 0],
    [8, 0, 0, 0],
    [7, 1, 0, 0],
    [14, 255, 0, 0],
    [0, 2, 1 << 3 | 2, 1],
    [9, 0, 200, 100],
    [7, 1, 0, 0],
    [14, 255, 0, 0],
];

/// More comes, is looked at and goes back.
const GOES_ON: &[[u8; 4]] =
    &[[9, 0, 100, 90], [6, 50, 0, 0], [14, 255, 0, 0], [3, 0, 255, 0], [6, 50, 0, 0]];

/// Memory is registered for a queue, a datagram socket is bound to the port that is steered there, and
/// received on; some come.
const DATAGRAMS: &[[u8; 4]] = &[
    [12, 2, 4, 63],
    [0, 12, 3, 1],
    [14, 255, 0, 0],
    [0, 2, 1 << 3 | 2, 1],
    [9, 0x81 | 3 << 2, 20, 60],
    [7, 1, 0, 0],
    [14, 255, 0, 0],
    [3, 0, 255, 0],
];

/// More come, of all lengths; an empty one, one in fragments.
const MORE_DATAGRAMS: &[[u8; 4]] = &[
    [9, 0x81, 0, 0],
    [9, 0x81, 255, 250],
    [9, 0x81 | 15 << 2, 30, 40],
    [9, 0x81, 3, 3],
    [6, 50, 0, 0],
    [14, 255, 0, 0],
    [3, 0, 255, 0],
    [6, 50, 0, 0],
];

fn datagrams() -> Vec<Vec<u8>> {
    let program =
        |verbs: &[&[[u8; 4]]]| [DATAGRAMS, &verbs.concat(), MORE_DATAGRAMS].concat().concat();
    vec![
        program(&[MORE_DATAGRAMS, MORE_DATAGRAMS]),
        // By copy, once, cut off.
        program(&[&[
            [0, 8, 1 << 3 | 4, 2],
            [0, 4, 1 << 3 | 3, 8],
            [9, 0x81, 30, 40],
            [7, 1, 0, 0],
            [14, 255, 0, 0],
            [0, 3, 1 << 3 | 3, 0],
        ]]),
        // Sent: to a peer that is there, one that is not, without one; empty, too long, from beyond
        // the memory.
        program(&[&[
            [12, 0, 255, 0],
            [0, 13, 1 << 3 | 5, 0],
            [0, 13, 1 << 3 | 5, 8],
            [0, 13, 1 << 3 | 5, 120],
            [0, 13, 1 << 3 | 5, 248],
            [0, 5, 1 << 3 | 5, 8],
            [0, 14, 1 << 3 | 6, 0],
            [0, 5, 1 << 3 | 5, 8],
            [0, 14, 1 << 3 | 6, 128],
            [0, 5, 1 << 3 | 5, 8],
            [7, 1, 0, 0],
            [14, 255, 0, 0],
            [0, 14, 1 << 3 | 6, 8],
            [0, 2, 1 << 3 | 2, 1],
        ]]),
        // Closed while some wait; the handle is used on.
        program(&[&[
            [0, 8, 1 << 3 | 4, 2],
            [9, 0x81 | 15 << 2, 30, 40],
            [7, 1, 0, 0],
            [0, 7, 1 << 3 | 7, 0],
            [0, 2, 1 << 3 | 2, 1],
            [0, 12, 3, 1],
            [14, 255, 0, 0],
        ]]),
        // The memory is taken back while they lie in it.
        program(&[&[
            [9, 0x81 | 15 << 2, 30, 40],
            [6, 9, 0, 0],
            [14, 255, 0, 0],
            [13, 0, 0, 0],
            [9, 0x81 | 15 << 2, 30, 40],
            [7, 1, 0, 0],
            [3, 0, 255, 0],
            [6, 10, 0, 0],
            [14, 255, 0, 0],
        ]]),
        // Nothing goes back, nothing is looked at: the queue fills, and drops.
        program(&[&[[9, 0x81 | 15 << 2, 40, 36], [6, 50, 0, 0]].repeat(60)]),
        program(&[&[[9, 0x81 | 15 << 2, 255, 250], [6, 50, 0, 0], [14, 255, 0, 0]].repeat(20)]),
        // Beside a stream.
        [BEGUN, DATAGRAMS, GOES_ON, MORE_DATAGRAMS, GOES_ON, MORE_DATAGRAMS].concat().concat(),
        // What makes no sense.
        program(&[&(0..=9).map(|family| [0, 15, 3, family]).collect::<Vec<_>>()]),
        program(&[&[[0, 0x8f, 3, 4], [0, 12, 3, 0], [0, 12, 3, 1], [0, 6, 1 << 3, 0]]]),
    ]
}

pub(crate) fn rings() -> Vec<Vec<u8>> {
    let program = |verbs: &[&[[u8; 4]]]| [BEGUN, &verbs.concat(), GOES_ON].concat().concat();
    let mut all = vec![
        program(&[GOES_ON, GOES_ON, GOES_ON]),
        // Only copies, without any queue; once, limited.
        [
            [0, 1, 0, 0],
            [8, 0, 0, 0],
            [7, 1, 0, 0],
            [14, 255, 0, 0],
            [0, 4, 1 << 3 | 3, 64],
            [9, 0, 255, 255],
            [7, 1, 0, 0],
            [14, 255, 0, 0],
            [3, 0, 255, 0],
            [0, 3, 1 << 3 | 3, 0],
            [7, 1, 0, 0],
            [14, 255, 0, 0],
        ]
        .concat(),
        // The end of the stream, an abort, a shutdown, a close.
        program(&[&[[11, 0, 0, 0], [7, 1, 0, 0], [14, 255, 0, 0], [0, 7, 1 << 3 | 7, 0]]]),
        program(&[&[[11, 0, 1, 0], [7, 1, 0, 0], [14, 255, 0, 0], [0, 6, 1 << 3, 0]]]),
        program(&[&[[0, 7, 1 << 3 | 7, 0], [7, 1, 0, 0], [0, 2, 1 << 3 | 2, 1], [14, 255, 0, 0]]]),
        // Cancels, and a second receive beside the first.
        program(&[&[[0, 8, 1 << 3 | 4, 2], [0, 8, 1 << 3 | 4, 2], [0, 2, 1 << 3 | 2, 0]]]),
        program(&[&[[0, 2, 1 << 3 | 2, 1], [0, 8, 4, 1], [14, 255, 0, 0]]]),
        // Sends, from memory that is there and from beyond it.
        program(&[&[
            [12, 0, 255, 0],
            [0, 5, 1 << 3 | 5, 0],
            [0, 5, 1 << 3 | 5, 8],
            [0, 5, 1 << 3 | 5, 248],
            [13, 0, 1, 0],
            [0, 5, 1 << 3 | 5, 8],
            [7, 1, 0, 0],
            [14, 255, 0, 0],
            [11, 0, 2, 0],
            [7, 1, 0, 0],
        ]]),
        // Connects: to itself, to a closed port, cancelled.
        program(&[&[
            [0, 9, 6, 0],
            [0, 9, 6, 1],
            [0, 9, 6, 9],
            [0, 8, 4, 14],
            [7, 3, 0, 0],
            [14, 255, 0, 0],
            [0, 2, 2 << 3 | 2, 1],
            [0, 2, 3 << 3 | 2, 1],
        ]]),
        // Registered and taken back while buffers are out; the number is used again.
        program(&[&[
            [13, 0, 0, 0],
            [6, 10, 0, 0],
            [3, 0, 255, 0],
            [6, 10, 0, 0],
            [14, 255, 0, 0],
            [12, 2, 4, 63],
            [0, 8, 1 << 3 | 4, 2],
            [0, 2, 1 << 3 | 2, 1],
        ]]),
        // Lent memory, sizes that make no sense, a queue that is taken.
        program(&[&[[12, 1, 9, 3], [12, 2, 0, 63], [12, 6, 0, 2], [12, 10, 0, 31], [13, 1, 0, 0]]]),
        // Nothing goes back.
        program(&[&[
            [9, 0, 255, 255],
            [7, 9, 0, 0],
            [14, 255, 0, 0],
            [9, 0, 255, 255],
            [7, 9, 0, 0],
        ]]),
        // Nothing is looked at.
        program(&[&[[0, 11, 0, 0]; 40]]),
        program(&[&[[9, 0, 100, 90], [6, 50, 0, 0]].repeat(24)]),
        // What is copied does not go back, but something else does, by its ring.
        [
            &[[0, 1, 0, 0], [8, 0, 0, 0], [7, 1, 0, 0], [14, 255, 0, 0], [0, 3, 1 << 3 | 3, 0]],
            &[[3, 38, 0, 9], [9, 0, 255, 100], [7, 1, 0, 0], [14, 255, 0, 0]].repeat(16)[..],
        ]
        .concat()
        .concat(),
        // Buffers that it does not hold, twice what it holds.
        program(&[&[
            [3, 2, 0, 1],
            [3, 2, 8, 255],
            [3, 2, 20, 255],
            [3, 38, 0, 9],
            [3, 6, 0, 9],
            [3, 3, 9, 0],
        ]]),
        program(&[&[[9, 0, 99, 99], [6, 99, 0, 0], [14, 255, 0, 0], [3, 3, 9, 0], [3, 0, 99, 0]]]),
    ];
    // Operations by number, with what must be zero.
    all.push(program(&[&(0..=9).map(|op| [0, 10, 1 << 3, op]).collect::<Vec<_>>()]));
    all.push(program(&[&(0..=9).map(|op| [0, 138, 1 << 3, op]).collect::<Vec<_>>()]));
    // Each word of each ring, changed in each way, with traffic between.
    for ring in 0..5 {
        for word in [0, 2, 4, 5, 6, 6 | 8, 6 | 16, 6 | 24] {
            let change = |way: u8| [[4, ring, word, way | 8], [9, 0, 60, 60], [6, 9, 0, 0]];
            let mut verbs = (0..8).map(change).collect::<Vec<_>>().concat();
            verbs.extend([[14, 9, 0, 0], [3, 0, 9, 0]]);
            all.push(program(&[&verbs]));
        }
    }
    // The rings while datagrams come.
    for ring in 0..5 {
        for word in [0, 2, 4, 6, 6 | 8, 6 | 16, 6 | 24, 6 | 40] {
            let change = |way: u8| [[4, ring, word, way | 8], [9, 0x85, 60, 20], [6, 9, 0, 0]];
            let mut verbs = (0..8).map(change).collect::<Vec<_>>().concat();
            verbs.extend([[14, 9, 0, 0], [3, 0, 9, 0]]);
            all.push([DATAGRAMS, &verbs, MORE_DATAGRAMS].concat().concat());
        }
    }
    all.extend(datagrams());
    all
}
