//! What an id shares with the channel that reads its events: where it is, what it is at, and the locks around that.

use super::abi::{DestroyId, EventsReported};
use super::channel::EventChannel;
use super::command::send;
use super::error::{About, Error, Step};
use super::event::{Event, EventType};
use super::explain;
use super::id::IdKey;
use super::params::PortSpace;
use super::reason::Reason;
use super::state::State;
use super::waiting::Waiting;
use crate::uverbs::device::DeviceIndex;
use crate::uverbs::errno::Errno;
use crate::uverbs::types::PortNum;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What an id is, and what is known of it.
pub struct IdShared {
    key: IdKey,
    number: u32,
    space: PortSpace,
    /// Whether the kernel still has it.
    alive: Mutex<bool>,
    /// The channel it is on. Held for each command, so that the id does not move meanwhile.
    home: RwLock<EventChannel>,
    track: Mutex<Track>,
    /// To be told when it is over.
    pub waiting: Waiting,
}

/// What is known of an id.
#[derive(Clone, Debug)]
pub struct Track {
    pub state: State,
    pub last_event: Option<EventType>,
    /// Why it is over, where an event has told.
    pub end: Reason,
    /// As given, until the kernel is asked.
    pub from: Option<SocketAddr>,
    pub to: Option<SocketAddr>,
    /// Once the kernel was asked.
    pub place: Option<Place>,
}

/// Where the kernel has an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its own address there, if that is an IP address.
    pub ip: Option<IpAddr>,
    pub port: PortNum,
    pub device: DeviceIndex,
}

impl Track {
    /// The states before the step and during it.
    pub fn begin(&mut self, step: Step) -> (State, State) {
        let before = self.state;
        self.state = before.after_step(step);
        (before, self.state)
    }

    /// The step was refused. An event that came meanwhile knows better.
    pub fn take_back(&mut self, before: State, during: State) {
        if self.state == during {
            self.state = before;
        }
    }
}

impl IdShared {
    pub fn new(channel: &EventChannel, key: IdKey, number: u32, space: PortSpace, state: State) -> Self {
        Self {
            key,
            number,
            space,
            alive: Mutex::new(true),
            home: RwLock::new(channel.clone()),
            track: Mutex::new(Track { state, last_event: None, end: Reason::None, from: None, to: None, place: None }),
            waiting: Waiting::default(),
        }
    }

    pub fn key(&self) -> IdKey {
        self.key
    }

    /// The kernel's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    pub fn space(&self) -> PortSpace {
        self.space
    }

    pub fn is_datagram(&self) -> bool {
        self.space.is_datagram()
    }

    pub fn track(&self) -> MutexGuard<'_, Track> {
        self.track.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn home(&self) -> RwLockReadGuard<'_, EventChannel> {
        self.home.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// For an id that moves.
    pub fn home_to_change(&self) -> RwLockWriteGuard<'_, EventChannel> {
        self.home.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of an event, and wakes who waits if it was the last one.
    pub fn note(&self, event: &Event) {
        let mut track = self.track();
        let before = track.state;
        let after = before.after_event(event.event_type());
        track.state = after;
        track.last_event = Some(event.event_type());
        if !after.is_over() || after == before {
            return;
        }
        if !before.is_over() {
            track.end = event.reason();
        }
        drop(track);
        self.waiting.wake_all();
    }

    pub fn about(&self) -> About {
        let Track { state, last_event, from, to, .. } = self.track().clone();
        About { from, to, interface: None, state: Some(state), last_event }
    }

    pub fn refused(&self, channel: &EventChannel, step: Step, errno: Errno) -> Error {
        match channel.refused(step, errno) {
            Error::Kernel { .. } => explain::refused(step, errno, self.about()),
            other => other,
        }
    }

    pub fn destroy(&self) -> Result<EventsReported, Error> {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if !*alive {
            return Ok(EventsReported::default());
        }
        let home = self.home();
        let request = DestroyId { response: 0, id: self.number, reserved: 0 };
        let reported = send(home.file(), request).map_err(|errno| self.refused(&home, Step::DestroyId, errno))?;
        *alive = false;
        Ok(reported)
    }
}
