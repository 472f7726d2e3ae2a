//! Sends by reference with notifications.

mod contract;
mod datagrams;
mod datagrams_properties;
mod joined;
mod properties;
mod release;
