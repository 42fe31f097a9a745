//! The kernel's structures and numbers, written by hand: only those that this library uses.
//!
//! Everything is in the host's byte order unless a field says otherwise. Structures derive `IntoBytes`, which refuses
//! hidden padding, so nothing uninitialised can reach the kernel; reserved fields are spelled out and stay zero.
//! `check` compares every field and constant with the installed kernel headers.

pub mod ioctl;
pub mod verbs;
pub mod write;

#[cfg(test)]
pub mod check;

/// Asserts the size of a structure and the offsets that matter, at compile time.
macro_rules! layout {
    ($type:ty, $size:literal $(, $field:ident @ $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(std::mem::offset_of!($type, $field) == $offset);)*
        };
    };
}
pub(crate) use layout;
