//! Seeds of what is parsed from text.

use super::packets::texts;

/// Addresses with prefixes.
pub(crate) fn cidrs() -> Vec<Vec<u8>> {
    texts(&[
        "10.0.0.1/24",
        "10.0.0.1/0",
        "10.0.0.1/32",
        "10.0.0.1/33",
        "10.0.0.1",
        "/24",
        "fd00::1/64",
        "fd00::1/128",
        "fd00::1/129",
        "::/0",
        "::ffff:10.0.0.1/96",
        "fe80::1%1/64",
        "10.0.0.1/+8",
        "10.0.0.1/ 8",
        "256.0.0.1/8",
        "10.0.0.1/8/8",
        "10.0.0.1/99999999999",
    ])
}

/// Settings of a bad line.
pub(crate) fn fault_specs() -> Vec<Vec<u8>> {
    texts(&[
        "loss=1%,reorder=0.5%,dup=1%,corrupt=0.1%,delay=10ms,jitter=1ms,rate=1gbit,seed=7,limit=1000",
        "on=tx,cut=yes",
        "on=rx,cut=no",
        "on=both",
        "loss=100%",
        "loss=100.0001%",
        "loss=-1%",
        "loss=0.00001%",
        "loss=1%,loss=2%",
        "delay=1s",
        "delay=1us,jitter=1ns",
        "delay=1h",
        "delay=18446744073709551615s",
        "rate=1bit",
        "rate=18446744073709551615gbit",
        "rate=0bit",
        "rate=1.5mbit",
        "limit=0",
        "limit=18446744073709551616",
        "seed=18446744073709551615",
        "",
        ",",
        "loss",
        "loss=",
        "=1%",
        "loss=1%,",
        "loss=.5%",
        "loss=1e3%",
        "delay=0.1ms",
        "rate=9kbit",
    ])
}
