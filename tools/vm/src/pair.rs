//! When the commands of a pair begin, and when one is stopped.

use std::io;
use std::time::{Duration, Instant};

use crate::relay::Carried;
use crate::report::Outcome;

/// How long the server's command may take until it listens. The client's begins then all the same: not everything uses TCP.
const UNTIL_LISTENING: Duration = Duration::from_secs(20);
/// How long one command may go on when the other has failed.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// Does what is due. Returns when to look again, if nothing happens before.
pub fn conduct(server: &mut Carried<'_>, client: &mut Carried<'_>, now: Instant) -> io::Result<Option<Instant>> {
    let mut due = [stop_after(server, client, now)?, stop_after(client, server, now)?, None];
    if server.report().ready && client.report().ready {
        server.begin(now);
    }
    if let (Some(begun), None) = (server.begun(), client.begun()) {
        let latest = begun + UNTIL_LISTENING;
        if server.report().listening || server.outcome().is_some() || now >= latest {
            client.begin(now);
        } else {
            due[2] = Some(latest);
        }
    }
    Ok(due.into_iter().flatten().min())
}

/// Stops the other one when `one` has failed: at once if it has not begun, otherwise after a while.
fn stop_after(one: &Carried<'_>, other: &mut Carried<'_>, now: Instant) -> io::Result<Option<Instant>> {
    let (Some(failed), None) = (one.failed(), other.outcome()) else { return Ok(None) };
    let latest = if other.begun().is_some() { failed + AFTER_FAILURE } else { failed };
    if now < latest {
        return Ok(Some(latest));
    }
    other.stop(Outcome::Stopped)?;
    Ok(None)
}
