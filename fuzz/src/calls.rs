//! Seeds of `posix_calls`: whole programs, four bytes to a call.

/// On the right host.
const R: u8 = 0x80;

/// A connection between the two: the listener is descriptor 0 on the right, the server 1; the client
/// is 0 on the left.
const CONNECTED: &[[u8; 4]] = &[
    [R, 0, 0, 0],
    [R | 1, 0, 1, 0],
    [R | 2, 0, 4, 0],
    [0, 0, 0, 0],
    [4, 0, 1, 0],
    [25, 0, 0, 0],
    [25, 0, 0, 0],
    [R | 3, 0, 0, 0],
];

pub(crate) fn calls() -> Vec<Vec<u8>> {
    let program = |calls: &[[u8; 4]]| [CONNECTED, calls].concat().concat();
    vec![
        // Data both ways, half-close, close.
        program(&[
            [5, 0, 3, 0xe8],
            [25, 0, 0, 0],
            [R | 6, 1, 0, 40],
            [R | 5, 1, 0x80, 0],
            [25, 0, 0, 0],
            [6, 0, 0, 255],
            [23, 0, 255, 255],
            [7, 0, 1, 0],
            [24, 0, 8, 0],
            [R | 6, 1, 0, 1],
            [R | 8, 1, 0, 0],
            [8, 0, 0, 0],
        ]),
        // poll and epoll: level, edge, one-shot, exclusive; a copy of the descriptor.
        program(&[
            [R | 11, 0, 0, 0],
            [R | 12, 2, 1, 1],
            [R | 12, 2, 0, 0xc1],
            [5, 0, 0, 100],
            [25, 0, 0, 0],
            [R | 13, 2, 4, 0],
            [R | 12, 2, 1, 0x65],
            [R | 13, 2, 4, 3],
            [R | 10, 5, 0, 5],
            [10, 0, 0, 4],
            [R | 9, 1, 0, 0],
            [R | 12, 2, 3, 0x85],
            [R | 12, 2, 1, 0x21],
            [R | 8, 1, 0, 0],
            [R | 13, 2, 4, 3],
        ]),
        // A pipe, spliced from and to the connection.
        program(&[
            [14, 0, 0, 0],
            [5, 2, 0, 201],
            [15, 1, 0, 2],
            [25, 0, 0, 0],
            [R | 14, 0, 0, 0],
            [R | 15, 1, 3, 2],
            [R | 6, 2, 0x80, 4],
            [15, 1, 2, 2],
            [8, 1, 0, 0],
            [8, 2, 0, 0],
        ]),
        // Options of all levels, set, got and too short; names; requests.
        program(&(0..64).flat_map(|i| [[16, i % 4, i, 1], [18, i % 4, i, 16]]).collect::<Vec<_>>()),
        program(
            &(0..32)
                .flat_map(|i| [[17, i % 4, i, i], [19, 0, i, 3], [20, 0, i, 0], [21, 0, 0, 0]])
                .collect::<Vec<_>>(),
        ),
        // Zero copy and its notification, urgent data, records.
        program(&[
            [16, 0, 60, 1],
            [22, 0, 5, 0],
            [22, 0, 3, 9],
            [22, 0, 2, 9],
            [25, 0, 0, 0],
            [24, 0, 6, 0],
            [23, 0, 0, 128],
            [R | 6, 1, 1, 4],
            [R | 6, 1, 2, 4],
            [R | 20, 1, 3, 0],
            [R | 6, 1, 0x20, 4],
        ]),
        // Datagrams, also to an address without a host.
        program(&[
            [0, 0, 0, 1],
            [1, 1, 0, 3],
            [R, 0, 0, 1],
            [R | 1, 2, 1, 3],
            [22, 1, 0, 3],
            [22, 1, 0, 0],
            [25, 0, 0, 0],
            [R | 23, 2, 1, 64],
            [23, 1, 0, 128],
        ]),
        // Closed with data unread, and with time to linger; refused.
        program(&[
            [5, 0, 0xff, 0xff],
            [25, 0, 0, 0],
            [R | 8, 1, 0, 0],
            [16, 0, 13, 1],
            [8, 0, 0, 0],
            [0, 0, 0, 0],
            [4, 1, 1, 3],
            [25, 0, 0, 0],
            [18, 16, 4, 4],
        ]),
    ]
}
