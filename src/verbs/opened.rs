//! An open device as its provider knows it, and what its objects tell each other of themselves.

use super::any::no_provider;
use crate::mlx5;
use crate::uverbs::context::Ucontext;
use crate::uverbs::device::DriverId;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
use crate::uverbs::sys::Cdev;
use std::sync::Arc;

/// An open device.
pub enum Opened {
    Rxe(Arc<Ucontext>),
    Mlx5(Arc<mlx5::Mlx5Context>),
}

/// What a queue pair needs to know of a completion queue.
pub enum CqLink {
    Rxe,
    Mlx5 {
        mailbox: Arc<mlx5::CqMailbox>,
        /// The device may pack completions.
        compressed: bool,
    },
}

/// What a queue pair needs to know of a shared receive queue.
pub enum SrqLink {
    Rxe,
    Mlx5(Arc<mlx5::SrqShared>),
}

impl Opened {
    /// Opens the context of a file.
    pub fn open(cdev: Arc<dyn Cdev>) -> Result<Self, Error> {
        match DriverId(cdev.driver_id()) {
            DriverId::RXE => Ucontext::open(cdev, &[], &mut []).map(Self::Rxe),
            DriverId::MLX5 => mlx5::Mlx5Context::open(cdev, mlx5::BlueFlame::default()).map(Self::Mlx5),
            driver => Err(no_provider(Verb::OpenDevice, driver)),
        }
    }

    pub fn ucontext(&self) -> &Arc<Ucontext> {
        match self {
            Self::Rxe(ucontext) => ucontext,
            Self::Mlx5(context) => context.ucontext(),
        }
    }

    pub fn driver(&self) -> DriverId {
        match self {
            Self::Rxe(_) => DriverId::RXE,
            Self::Mlx5(_) => DriverId::MLX5,
        }
    }

    pub fn alloc_pd(&self) -> Result<Handle, Error> {
        match self {
            Self::Rxe(ucontext) => ucontext.alloc_pd(&mut []),
            Self::Mlx5(context) => mlx5::alloc_pd(context),
        }
    }
}
