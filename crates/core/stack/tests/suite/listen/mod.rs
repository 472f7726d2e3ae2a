//! Listeners: backlogs, floods, and requests that the application answers.

mod listener;
mod requests;
mod syn_flood;
mod transparent;
