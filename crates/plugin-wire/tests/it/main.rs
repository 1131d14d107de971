//! Client against server, over a real socket: the public face of the crate on both sides.

mod calls;
mod connection;
mod fake;
mod objects;
mod snapshots;
mod values;
