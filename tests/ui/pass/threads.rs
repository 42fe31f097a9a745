//! What can be moved to another thread, and what can be shared between threads.

use ironverbs::{
    Any, AsyncEvents, CompChannel, Context, Cq, Endpoint, Error, Mr, Pd, Pool, PreparedQp, Qp, RecvHalf, Rxe, SendHalf,
    Slot, Wc,
};

fn can_be_moved<T: Send>() {}
fn can_be_shared<T: Sync>() {}

fn main() {
    can_be_moved::<(Context, Pd, CompChannel, AsyncEvents, Pool, Slot, Mr)>();
    can_be_moved::<(Cq, Qp, PreparedQp, SendHalf, RecvHalf)>();
    can_be_moved::<(Cq<Rxe>, Qp<Rxe>, PreparedQp<Rxe>, SendHalf<Rxe>, RecvHalf<Rxe>)>();
    can_be_moved::<(Endpoint, Error, Wc, Any)>();
    can_be_shared::<(Context, Pd, CompChannel, AsyncEvents, Pool, Mr)>();
    can_be_shared::<(Endpoint, Error, Wc)>();
}
