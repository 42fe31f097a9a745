//! Queue pairs for the connection manager's ids, and connections in a few calls.

mod attributes;
mod connection;
mod connector;
mod devices;
mod handshake;
mod listener;
mod wait;

#[cfg(test)]
mod tests;

pub use connection::{Connection, Link};
pub use connector::{Connector, Route};
pub use devices::Devices;
pub use handshake::Handshake;
pub use listener::{Listener, Request};
