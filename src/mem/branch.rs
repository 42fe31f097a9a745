//! Branches that are seldom taken.

use std::sync::atomic::{Ordering, compiler_fence};

/// Put into a branch that is seldom taken: keeps the compiler from doing the work of that branch, or a part of it, beforehand for
/// both ways. Emits nothing.
#[inline(always)]
pub fn aside() {
    compiler_fence(Ordering::AcqRel);
}
