//! A shared object that packetdrill can drive: its interface for user-space stacks, over a Pagewire
//! stack in virtual time, without root.
//!
//! ```text
//! packetdrill --so_filename=target/release/libpagewire_packetdrill.so \
//!             --so_flags=addr=192.168.0.1/16,sysctl=FILE,looped=copy script.pkt
//! ```
//!
//! Read [`calls`] first, the interface; then [`world`](world::World), which has the time. Scripts set
//! [`flags`] and [`settings`]. `scripts/packetdrill` runs whole directories.

pub mod calls;
pub mod flags;
pub mod limits;
pub mod plugin;
pub mod preload;
pub mod settings;
pub mod stacks;
pub mod wire;
pub mod world;

use core::ffi::{CStr, c_char};

use calls::Interface;
use plugin::Plugin;
pub(crate) use preload::forget;

/// The entry point that packetdrill calls first. Makes a stack as `flags` says (`--so_flags`; null without), and fills
/// in `table`. Ends the process with a message if that fails: there is no other way to report it.
///
/// # Safety
/// `flags` is null or a C string, and `table` points to memory for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, table: *mut Interface) {
    let list = if flags.is_null() {
        String::new()
    } else {
        // SAFETY: not null, so the caller promises a C string.
        unsafe { CStr::from_ptr(flags) }.to_string_lossy().into_owned()
    };
    let plugin = Plugin::new(&list).unwrap_or_else(|why| {
        eprintln!("pagewire: {why}");
        std::process::exit(1);
    });
    let interface = calls::interface(Box::new(plugin));
    preload::remember(interface.userdata.cast());
    // SAFETY: the caller promises room for one table.
    unsafe { table.write(interface) };
}
