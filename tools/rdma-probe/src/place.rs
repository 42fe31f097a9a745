//! Where a ping takes place: a device and a port, opened and checked.

use crate::args::Ping;
use crate::choose;
use crate::failure::{Failure, Kind};
use crate::machine::Machine;
use crate::reach::Reach;
use crate::stop::Stop;
use crate::wire::Address;
use ironverbs::{
    AckTimeout, AddressFamily, Any, ConnectOptions, Context, DeviceInfo, DriverId, Gid, GidIndex, Lid, LinkLayer, Mtu,
    Pd, PortAttr, PortNum, PortState, QpBuilder, QpType,
};

/// Longest message that is copied into its work request, where the device can do that. Longer ones gain nothing by it.
const MAX_INLINE_BYTES: u32 = 128;

/// What `ibv_rc_pingpong` uses unless told otherwise. Both ends need the same.
const DEFAULT_MTU: Mtu = Mtu::B1024;

/// Ack timeout of a simulated device, as a code: 4.3 s (IB spec 9.7.6.1.3).
const PATIENT_ACK_TIMEOUT: u8 = 20;

/// The device and port, opened and checked.
pub struct Place<'a> {
    /// What was asked for.
    pub args: &'a Ping,
    /// The device.
    pub context: Context,
    /// Where all objects of the ping are made.
    pub pd: Pd,
    /// The device's port.
    pub port_num: PortNum,
    /// Path MTU of a connection.
    pub mtu: Mtu,
    port: PortAttr,
    /// Whose device it is.
    pub machine: &'a Machine,
    /// Whether to go on.
    pub stop: &'a Stop,
}

impl<'a> Place<'a> {
    /// Opens the device, and looks whether it can do what was asked for.
    pub fn open(machine: &'a Machine, devices: &[DeviceInfo], args: &'a Ping, stop: &'a Stop) -> Result<Self, Failure> {
        let device = choose::usable(devices, args.device.as_deref())?;
        let cannot_open = |e| Failure::from(e).during(format_args!("cannot open {}", device.name));
        let context = Context::open_on(&**machine.sys(), device).map_err(cannot_open)?;
        Self::at(machine, context, args.ib_port, args, stop)
    }

    /// A port of a device that is open, if it can do what was asked for.
    pub fn at(
        machine: &'a Machine,
        context: Context,
        port_num: PortNum,
        args: &'a Ping,
        stop: &'a Stop,
    ) -> Result<Self, Failure> {
        let port = context.query_port(port_num)?;
        check_port(&context, args, port_num, &port)?;
        let mtu = path_mtu(args, port_num, &port)?;
        let pd = context.alloc_pd()?;
        Ok(Self { args, context, pd, port_num, port, mtu, machine, stop })
    }

    /// Where the port is in an InfiniBand subnet.
    pub fn lid(&self) -> Lid {
        self.port.lid
    }

    /// Whether peers are reached by GID only.
    pub fn is_ethernet(&self) -> bool {
        self.port.link_layer == LinkLayer::Ethernet
    }

    /// Whether the device is a thread of the kernel. A simulated one is none: it works between the steps of a ping.
    pub fn is_software_device(&self) -> bool {
        self.context.info().driver == Some(DriverId::RXE)
    }

    /// Why a trace shows no work queue entries, if it does not.
    pub fn untraced(&self) -> Option<String> {
        let driver = self.context.info().driver;
        let wanted = self.machine.rings().is_some() && driver != Some(DriverId::MLX5);
        let name = driver.and_then(DriverId::name).unwrap_or("unknown");
        wanted.then(|| {
            format!(
                "--trace shows commands only: work queue entries and completions of driver {name} have another format than \
                 those of mlx5, which rdma-probe decode knows"
            )
        })
    }

    /// Bytes of a message to copy into its work request, or none.
    pub fn inline_bytes(&self) -> u32 {
        let size = self.args.size();
        if size <= MAX_INLINE_BYTES { size } else { 0 }
    }

    /// Refuses more receives than the device's queues hold, beside `others`, the completions of what is not a receive.
    pub fn check_rx_depth(&self, others: u32) -> Result<(), Failure> {
        let attr = self.context.attr();
        let most = attr.max_cqe.saturating_sub(others).min(attr.max_qp_wr);
        if self.args.rx_depth <= most {
            return Ok(());
        }
        let name = &self.context.info().name;
        Err(Failure::new(Kind::Usage, format!("--rx-depth is {}; {name} takes 1 to {most}", self.args.rx_depth)))
    }

    /// Adds the port, and the GID that was asked for, or what is known of the peer's.
    pub fn aim<'b, T: QpType>(&self, mut qp: QpBuilder<'b, Any, T>, reach: Reach) -> QpBuilder<'b, Any, T> {
        qp = qp.port(self.port_num);
        match (self.args.gid_index, reach) {
            (Some(index), _) => qp.gid_index(GidIndex(index)),
            (None, Reach::Gid(Some(want))) => qp.gid_want(want),
            (None, Reach::Gid(None) | Reach::Lid) => qp,
        }
    }

    /// What a connection is made with, where the library would use `options`.
    pub fn connect_options(&self, mut options: ConnectOptions) -> ConnectOptions {
        let args = self.args;
        options.path_mtu = Some(self.mtu);
        options.sl = args.sl;
        options.max_rd_atomic = 1;
        options.max_dest_rd_atomic = 1;
        options.min_rnr_timer = args.min_rnr_timer;
        options.rnr_retry = args.rnr_retry;
        if self.machine.is_simulated() {
            // Nothing is lost here, but the other process may wait for a processor.
            options.timeout = AckTimeout::from_code(PATIENT_ACK_TIMEOUT).unwrap_or(options.timeout);
        }
        options
    }

    /// Refuses what the kernel would answer with a bare EINVAL, or not at all.
    pub fn check_gids(&self, local: Option<Gid>, remote: &Address) -> Result<(), Failure> {
        if !self.is_ethernet() {
            return Ok(());
        }
        if remote.gid.is_zero() {
            return Err(Failure::new(Kind::Peer, "the peer sent no GID, and RoCE reaches nobody without one")
                .hint(format!("start ibv_{}_pingpong with -g INDEX", self.args.transport)));
        }
        match (local.map(AddressFamily::of), AddressFamily::of(remote.gid)) {
            (Some(ours), theirs) if ours != theirs => {
                let text = format!("the peer's GID is {theirs}, this end's is {ours}: one does not reach the other");
                Err(Failure::new(Kind::Peer, text)
                    .hint("choose GIDs of one family with --gid-index; rdma-probe gids shows them"))
            }
            _ => Ok(()),
        }
    }
}

/// Why a port may not be active.
fn inactive(port: &PortAttr) -> &'static str {
    match (port.link_layer, port.state) {
        (LinkLayer::InfiniBand, PortState::DOWN) => {
            "is the cable in, and the other end's port up? then a subnet manager (opensm) is to make it ACTIVE"
        }
        (LinkLayer::InfiniBand, _) => {
            "the link is there; a subnet manager is to make it ACTIVE: does one (opensm) run?"
        }
        _ => "is the cable in, or the network device up? ip link set DEV up",
    }
}

fn check_port(context: &Context, args: &Ping, port_num: PortNum, port: &PortAttr) -> Result<(), Failure> {
    let name = &context.info().name;
    if port.state != PortState::ACTIVE {
        let state = port.state;
        let failure = Failure::new(Kind::Device, format!("port {port_num} of {name} is {state}, not ACTIVE"));
        return Err(failure.hint(inactive(port)));
    }
    let size = args.size();
    if size > port.max_msg_sz {
        let text = format!("--size is {size}; port {port_num} of {name} takes {} bytes at most", port.max_msg_sz);
        return Err(Failure::new(Kind::Usage, text));
    }
    match port.active_mtu {
        Some(active) if args.transport.is_datagram() && size > active.bytes() => {
            let text = format!(
                "--size is {size}; a datagram is one packet, and port {port_num} of {name} takes {active} bytes at most"
            );
            Err(Failure::new(Kind::Usage, text))
        }
        _ => Ok(()),
    }
}

/// The MTU asked for, or the one that the C tools would use, as far as the port has it. A datagram is one packet.
fn path_mtu(args: &Ping, port_num: PortNum, port: &PortAttr) -> Result<Mtu, Failure> {
    let Some(active) = port.active_mtu else { return Ok(args.mtu.unwrap_or(DEFAULT_MTU)) };
    match args.mtu {
        Some(mtu) if mtu > active => {
            let text = format!("--mtu is {mtu}; the active MTU of port {port_num} is {active}");
            Err(Failure::new(Kind::Usage, text)
                .hint("on Ethernet it is the largest that fits the network device's MTU: ip link set DEV mtu 4200"))
        }
        Some(mtu) => Ok(mtu),
        None if args.loopback || args.transport.is_datagram() => Ok(active),
        None => Ok(DEFAULT_MTU.min(active)),
    }
}
