//! The real binary, started on free ports with folders of their own: what a user does, and what must survive.

mod commands;
mod crash;
mod holds;
mod readme;
mod server;
mod serving;
mod starting;
