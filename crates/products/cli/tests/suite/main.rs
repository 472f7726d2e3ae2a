//! The command from end to end, and the rules of the tree that a machine can check.

mod callers;
mod cores;
mod demo_and_bench;
mod guest;
mod install;
mod lab;
mod mistakes;
mod observe;
mod proxy;
mod real_peers;
mod report;
mod rules;
mod run;
mod tidy;
