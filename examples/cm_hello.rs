//! A greeting each way over a connection that is made by IP address and port, by the kernel's connection manager.
//!
//! ```sh
//! cm_hello            # server: waits at port 7471 of every device
//! cm_hello 10.9.9.1   # client
//! ```

use ironverbs::rdma_cm::{Connection, Connector, Devices, Handshake, Listener, SendData};
use ironverbs::{Context, Cq, Pd, Pool, PreparedQp, QpBuilder};
use std::error::Error;
use std::time::Duration;

const PORT: u16 = 7471;
const ROOM: usize = 64;
const WITHIN: Duration = Duration::from_secs(10);

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cm_hello: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let devices = Devices::new();
    // What each side calls itself travels with the handshake.
    let mut handshake = Handshake::default();
    match std::env::args().nth(1) {
        None => {
            let listener = Listener::bind(format!("0.0.0.0:{PORT}").parse()?)?;
            let request = listener.request(Duration::from_secs(60))?.ok_or("nobody came within a minute")?;
            println!("{} asks", name(request.peer_data().counted()));
            let mut side = Side::on(&devices.context_of(request.id())?)?;
            let prepared = side.ready(request.qp_builder(&side.pd, &side.cq, &side.cq)?)?;
            handshake.private_data = SendData::counted(b"server");
            let mut connection = request.accept(prepared, &handshake, WITHIN)?;
            println!("the client says: {}", side.hear()?);
            side.say(&mut connection, "hello yourself")?;
            connection.link().wait_end(WITHIN)?.ok_or("the client does not hang up")?;
        }
        Some(host) => {
            let route = Connector::to(format!("{host}:{PORT}").parse()?).resolve(WITHIN)?;
            let mut side = Side::on(&devices.context_of(route.id())?)?;
            let prepared = side.ready(route.qp_builder(&side.pd, &side.cq, &side.cq)?)?;
            handshake.private_data = SendData::counted(b"client");
            let mut connection = route.connect(prepared, &handshake, WITHIN)?;
            println!("{} answers", name(connection.peer_data().counted()));
            side.say(&mut connection, "hello")?;
            println!("the server says: {}", side.hear()?);
            connection.disconnect(WITHIN)?;
        }
    }
    Ok(())
}

fn name(data: Option<&[u8]>) -> String {
    data.map_or("somebody".into(), |bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// What a side has on the device that leads to its peer.
struct Side {
    pd: Pd,
    cq: Cq,
    pool: Pool,
}

impl Side {
    fn on(context: &Context) -> Result<Self, ironverbs::Error> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.cq_builder(16).channel(&channel).build()?;
        let pool = Pool::new(&pd, 2, ROOM)?;
        Ok(Self { pd, cq, pool })
    }

    /// A queue pair with a receive posted: the peer may send as soon as it is connected.
    fn ready(&self, builder: QpBuilder<'_>) -> Result<PreparedQp, Box<dyn Error>> {
        let mut prepared = builder.build()?;
        prepared.recv_slot(self.pool.take().ok_or("no slot")?)?;
        Ok(prepared)
    }

    fn say(&self, connection: &mut Connection, text: &str) -> Result<(), Box<dyn Error>> {
        let mut slot = self.pool.take().ok_or("no slot")?;
        slot[..text.len()].copy_from_slice(text.as_bytes());
        Ok(connection.qp().send_slot(slot, text.len() as u32)?)
    }

    /// The next message; the completion of what was said may come before it.
    fn hear(&mut self) -> Result<String, Box<dyn Error>> {
        loop {
            if !self.cq.wait(WITHIN)? {
                return Err("the peer says nothing".into());
            }
            let mut completions = self.cq.poll()?;
            while let Some(completion) = completions.next() {
                let (slot, wc) = self.pool.reclaim(completion).map_err(|_| "a completion of something else")?;
                let done = wc.outcome()?;
                if done.opcode.is_recv() {
                    return Ok(String::from_utf8_lossy(&slot[..done.byte_len as usize]).into_owned());
                }
            }
        }
    }
}
