//! The commands, each in a module of its name. `run` and `gateway` share [`guest`], `ss`, `top` and `ctl`
//! [`processes`] and [`flows`]; the measurements are a crate of their own. [`api`] serves requests for ports.

#[cfg(feature = "full")]
pub(crate) mod api;
#[cfg(feature = "full")]
mod background;
#[cfg(feature = "full")]
pub(crate) mod check;
#[cfg(feature = "full")]
pub(crate) mod ctl;
pub(crate) mod demo;
#[cfg(feature = "full")]
pub(crate) mod fetch;
#[cfg(feature = "full")]
mod flows;
#[cfg(feature = "full")]
pub(crate) mod gateway;
#[cfg(feature = "full")]
mod guest;
#[cfg(feature = "full")]
mod guest_network;
#[cfg(feature = "full")]
pub(crate) mod pages;
#[cfg(feature = "full")]
pub(crate) mod port_changes;
#[cfg(feature = "full")]
mod processes;
#[cfg(feature = "full")]
pub(crate) mod proxy;
#[cfg(feature = "full")]
pub(crate) mod run;
#[cfg(feature = "full")]
pub(crate) mod serve;
#[cfg(feature = "full")]
pub(crate) mod ss;
#[cfg(feature = "full")]
pub(crate) mod top;
#[cfg(feature = "full")]
mod ways;
