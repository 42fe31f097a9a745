//! Awaiting events of the connection manager.

use super::{io_error, watch};
use crate::cm::channel::EventChannel;
use crate::cm::error::{Error, Step};
use crate::cm::event::Event;
use crate::uverbs::error::Verb;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The next event of a channel. Can be dropped at any time, and loses nothing.
///
/// A handshake waits a few times and connections are not made by the thousand, so the runtime is told of the descriptor anew
/// at each wait, and forgets it after.
pub(in crate::verbs) async fn next_cm_event(channel: &EventChannel) -> Result<Event, Error> {
    if let Some(event) = channel.try_next()? {
        return Ok(event);
    }
    let verbs = || Error::verbs(Step::GetEvent);
    let io = |e: std::io::Error| io_error(Verb::GetCmEvent, &e);
    let duplicate = channel.as_fd().try_clone_to_owned().map_err(io).map_err(verbs())?;
    let watched = watch(Arc::new(duplicate), Verb::GetCmEvent).map_err(verbs())?;
    loop {
        let mut ready = watched.readable().await.map_err(io).map_err(verbs())?;
        match channel.try_next()? {
            Some(event) => return Ok(event),
            None => ready.clear_ready(),
        }
    }
}
