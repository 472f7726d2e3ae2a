//! The link addresses, which are locally administered.

/// The server's, on all its queues.
pub(super) const SERVER_MAC: [u8; 6] = [0x02, 0x50, 0x57, 0, 1, 0];

/// The first bytes of the clients'.
const CLIENTS: [u8; 5] = [0x02, 0x50, 0x57, 0, 2];

/// The link address of a client.
pub(super) fn mac(number: u8) -> [u8; 6] {
    let [a, b, c, d, e] = CLIENTS;
    [a, b, c, d, e, number]
}
