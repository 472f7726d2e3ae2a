//! The target of `userdata`: the descriptors, their world, and its settings.

use std::sync::{Mutex, PoisonError};

use pagewire_mem::{Instant, MemError};
use pagewire_posix::Descriptors;
use pagewire_stack::{Cidr, Coalescing, StackConfig, StackError};

use crate::flags::{FlagError, Flags};
use crate::limits::{BEGINNING, MEMORY, OPTMEM_BYTES};
use crate::settings::SettingsFile;
use crate::stacks::Stacks;
use crate::wire::Wire;
use crate::world::World;

/// The stack of one script.
#[derive(Debug)]
pub struct Plugin {
    /// The descriptors.
    pub files: Descriptors<World>,
    settings: Mutex<Reader>,
}

/// The settings, and what the stack was made with.
#[derive(Debug)]
struct Reader {
    file: Option<SettingsFile>,
    /// Without the file's settings.
    base: StackConfig,
    /// Number of stacks.
    shards: usize,
    /// The last result of [`Settings::forgets`](crate::settings::Settings::forgets).
    forgets: [Option<String>; 2],
    /// No socket was opened yet: everything can still be set.
    untouched: bool,
    /// ICMP errors about nothing in flight, as last written.
    icmps: u64,
}

/// Why there is no stack.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// The flags make no sense.
    #[error("--so_flags: {0}")]
    Flags(#[from] FlagError),
    /// The addresses make no sense.
    #[error("--so_flags: {0}")]
    Stack(#[from] StackError),
    /// No memory.
    #[error("{0} (packetdrill locks memory: is RLIMIT_MEMLOCK large enough?)")]
    Memory(#[from] MemError),
    /// A file cannot be read.
    #[error("{0}")]
    File(#[from] std::io::Error),
}

impl Plugin {
    /// Makes a stack with the settings of the flags. Only the calling thread moves time.
    ///
    /// # Errors
    /// Flags that make no sense, or no memory.
    pub fn new(flags: &str) -> Result<Self, PluginError> {
        let flags = Flags::parse(flags)?;
        let now = Instant::ZERO + BEGINNING;
        // Nothing is random: all runs are equal.
        let mut base =
            StackConfig::new(Wire::capabilities(flags.mtu()), flags.addresses.clone(), [0x5a; 32]);
        base.memory = MEMORY;
        base.announce = false;
        base.tcp.max_mss = flags.max_mss();
        base.zerocopy.looped_copy = flags.looped_copy;
        base.zerocopy.coalescing = Coalescing::Linux;
        base.zerocopy.notification_bytes = OPTMEM_BYTES;
        // The wire has no stations: all addresses that are not ours are at its other end.
        base.gateways = flags.addresses.iter().map(Cidr::addr).collect();
        let shards = flags.shards;
        let world = World::new(now, Stacks::new(now, &base, shards)?, Wire::new()?)?;
        let plugin = Self {
            files: Descriptors::with_numbering(world.clone(), Box::new(world)),
            settings: Mutex::new(Reader {
                file: flags.sysctl.map(SettingsFile::new),
                base,
                shards,
                forgets: [None, None],
                untouched: true,
                icmps: 0,
            }),
        };
        plugin.refresh(false)?;
        Ok(plugin)
    }

    /// The world.
    pub fn world(&self) -> &World {
        self.files.backend()
    }

    /// Applies the file of settings, if it has changed; `opens`: a socket is about to be opened.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn refresh(&self, opens: bool) -> Result<(), PluginError> {
        let mut reader = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let Reader { file, base, shards, forgets, untouched, .. } = &mut *reader;
        if let Some(settings) = file.as_mut().map(SettingsFile::changed).transpose()?.flatten() {
            let mut config = base.clone();
            settings.apply(&mut config);
            // There is one peer: the route to it holds for all connections.
            let route = settings.route();
            if let Some((_, _, Some(segments))) = route {
                config.tcp.initial_cwnd = segments;
            }
            if *untouched {
                self.world().replace(Stacks::new(self.world().present(), &config, *shards)?);
            } else {
                self.world().change_all(|stack| stack.reconfigure(&config));
            }
            if let Some((to, mtu, _)) = route {
                self.world().change_all(|stack| stack.set_path_mtu(to, mtu));
            }
            let says = settings.forgets().map(|says| says.map(str::to_owned));
            if *forgets != says {
                *forgets = says;
                self.world().change_all(|stack| stack.fast_open().forget_cookies());
            }
            self.world().change(|_, wire| wire.set_queue(!settings.drops_output()));
        }
        *untouched &= !opens;
        Ok(())
    }

    /// Writes changed counters beside the file of settings: lines of Linux's name, count and rate.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn publish(&self) -> Result<(), PluginError> {
        let mut reader = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = reader.file.as_ref().map(SettingsFile::counters) else { return Ok(()) };
        let icmps = self.world().change(|stack, _| stack.counters().tcp_icmp_outside_window);
        if icmps != reader.icmps {
            reader.icmps = icmps;
            std::fs::write(path, format!("TcpExtOutOfWindowIcmps {icmps} 0.0\n"))?;
        }
        Ok(())
    }
}
