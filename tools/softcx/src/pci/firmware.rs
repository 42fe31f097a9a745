//! The firmware: which command is which, what of a driver's state is its own, and where events go.

use super::capabilities::Capabilities;
use super::command::{Command, Status};
use super::completion_queues::CompletionQueues;
use super::event_queues::{EventQueues, Untold};
use super::objects::Objects;
use super::queue_pairs::QueuePairs;
use super::receive_queues::ReceiveQueues;
use super::{limits, port, queue_pairs};
use crate::bits::be16;
use crate::bits::field::Field;
use crate::bits::firmware::{opcode as op, status};
use crate::device::Device;
use crate::event::Event;
use crate::memory::Memory;
use std::fmt;

/// What the firmware knows besides the device's objects.
#[derive(Debug)]
pub(super) struct Firmware {
    pub eqs: EventQueues,
    capabilities: Capabilities,
    objects: Objects,
    cqs: CompletionQueues,
    qps: QueuePairs,
    receive: ReceiveQueues,
    /// Pages that the driver has lent.
    pages: Vec<u64>,
    port_capabilities: u32,
    issi: u16,
}

/// What the function asks the driver to lend: it needs none, but drivers lend, and want back what they lent.
const BOOT_PAGES: u32 = 16;
const INIT_PAGES: u32 = 16;

impl Firmware {
    /// Firmware that knows of nothing yet. `blue_flame`: send registers take whole WQEs. `clock_khz`: of the guest's time.
    pub fn new(blue_flame: bool, clock_khz: u64) -> Self {
        Self {
            eqs: EventQueues::default(),
            capabilities: Capabilities::new(blue_flame, clock_khz),
            objects: Objects::default(),
            cqs: CompletionQueues::default(),
            qps: QueuePairs::default(),
            receive: ReceiveQueues::default(),
            pages: vec![],
            port_capabilities: port::CAPABILITIES,
            issi: 0,
        }
    }

    /// Executes a command and returns its output.
    pub fn execute(&mut self, device: &mut Device, input: &[u8], log: &mut dyn FnMut(fmt::Arguments<'_>)) -> Vec<u8> {
        let mut command = Command::new(input);
        let result = self.dispatch(device, &mut command);
        let code = command.opcode;
        let name = op::name(code).unwrap_or("unknown command");
        let modifier = command.modifier;
        let output = command.finish(result);
        match result {
            Ok(()) => log(format_args!("{name} ({code:#x}, modifier {modifier:#x}): status 0x0")),
            Err(Status(status)) => log(format_args!("{name} ({code:#x}, modifier {modifier:#x}): status {status:#x}")),
        }
        output
    }

    fn dispatch(&mut self, device: &mut Device, c: &mut Command<'_>) -> Result<(), Status> {
        limits::check(device, self.eqs.len(), self.objects.transport_domains(), c)?;
        match c.opcode {
            op::NOP | op::ENABLE_HCA | op::INIT_HCA | op::SET_DRIVER_VERSION => Ok(()),
            op::DISABLE_HCA | op::TEARDOWN_HCA => Ok(()),
            op::QUERY_ISSI => {
                const CURRENT: Field = Field::new(0x50, 16);
                const SUPPORTED: Field = Field::new(0x360, 32);
                c.output(16, 0x60);
                c.put(CURRENT, self.issi);
                // Interfaces 0 and 1.
                c.put(SUPPORTED, 3_u32);
                Ok(())
            }
            op::SET_ISSI => {
                let wanted = be16(c.input, 10);
                if wanted > 1 {
                    return Err(Status(status::BAD_PARAM));
                }
                self.issi = wanted;
                Ok(())
            }
            op::QUERY_PAGES => self.query_pages(c),
            op::MANAGE_PAGES => self.manage_pages(c),
            op::QUERY_ADAPTER => port::query_adapter(c),
            op::QUERY_HCA_CAP => self.capabilities.query(c),
            op::SET_HCA_CAP => self.capabilities.set(device, c),
            op::QUERY_HCA_VPORT_CONTEXT => port::query_context(device, self.port_capabilities, c),
            op::MODIFY_HCA_VPORT_CONTEXT => port::modify_context(&mut self.port_capabilities, c),
            op::QUERY_HCA_VPORT_GID => port::query_gid(device, c),
            op::QUERY_HCA_VPORT_PKEY => port::query_pkey(device, c),
            op::ACCESS_REG => port::access_register(device, c),
            op::MAD_IFC => port::management_datagram(c),

            op::ALLOC_UAR => self.objects.alloc_uar(c),
            op::DEALLOC_UAR => self.objects.dealloc_uar(c),
            op::ALLOC_TRANSPORT_DOMAIN => self.objects.alloc_transport_domain(c),
            op::DEALLOC_TRANSPORT_DOMAIN => self.objects.dealloc_transport_domain(c),
            op::ALLOC_Q_COUNTER => self.objects.alloc_counters(c),
            op::DEALLOC_Q_COUNTER => self.objects.dealloc_counters(c),
            op::QUERY_Q_COUNTER => self.objects.query_counters(c),
            op::ALLOC_PD => {
                c.put_number(device.alloc_pd());
                Ok(())
            }
            op::DEALLOC_PD => Ok(device.dealloc_pd(c.number())?),
            op::ALLOC_XRCD => {
                c.put_number(device.alloc_xrcd());
                Ok(())
            }
            op::DEALLOC_XRCD => Ok(device.dealloc_xrcd(c.number())?),
            op::CREATE_MKEY => super::objects::create_mkey(device, c),
            op::DESTROY_MKEY => Ok(device.destroy_mkey(c.number() << 8)?),
            op::QUERY_SPECIAL_CONTEXTS => Ok(()),
            op::ATTACH_TO_MCG => Ok(device.attach_multicast(crate::bits::array(c.input, 16), c.number())?),
            op::DETACH_FROM_MCG => Ok(device.detach_multicast(crate::bits::array(c.input, 16), c.number())?),

            op::CREATE_EQ => self.eqs.create(c),
            op::DESTROY_EQ => self.eqs.destroy(&self.cqs, c),
            op::QUERY_EQ => self.eqs.query(c),
            op::CREATE_CQ => self.cqs.create(device, &self.eqs, c),
            op::MODIFY_CQ => self.cqs.modify(device, c),
            op::QUERY_CQ => self.cqs.query(device, c),
            op::DESTROY_CQ => self.cqs.destroy(device, c),

            op::CREATE_QP => self.qps.create(device, c),
            op::CREATE_SQ => queue_pairs::create_sq(device, c),
            op::MODIFY_SQ => queue_pairs::modify_sq(device, c),
            op::DESTROY_SQ => Ok(device.destroy_qp(c.number())?),
            op::QUERY_QP => self.qps.query(device, c),
            op::DESTROY_QP => self.qps.destroy(device, c),
            op::RST2INIT_QP
            | op::INIT2INIT_QP
            | op::INIT2RTR_QP
            | op::RTR2RTS_QP
            | op::RTS2RTS_QP
            | op::SQERR2RTS_QP
            | op::SQD_RTS_QP
            | op::TO_ERR_QP
            | op::TO_RST_QP => queue_pairs::modify(device, c),

            op::CREATE_XRC_SRQ => self.receive.create_xrc(device, c),
            op::CREATE_RMP => self.receive.create_pool(device, c),
            op::QUERY_XRC_SRQ => self.receive.query_xrc(device, c),
            op::QUERY_RMP => self.receive.query_pool(device, c),
            op::ARM_XRC_SRQ => Ok(device.arm_srq(c.number(), c.be16(14))?),
            op::MODIFY_RMP => self.receive.modify_pool(device, c),
            op::DESTROY_XRC_SRQ | op::DESTROY_RMP => self.receive.destroy(device, c),
            _ => Err(Status(status::BAD_OPCODE)),
        }
    }

    /// QUERY_PAGES: how many pages the driver is to lend before it boots (1) or initializes (2) the function.
    fn query_pages(&self, c: &mut Command<'_>) -> Result<(), Status> {
        const COUNT: Field = Field::new(0x60, 32);
        let count = match c.modifier {
            1 => BOOT_PAGES,
            2 => INIT_PAGES,
            _ => 0,
        };
        c.put(COUNT, count);
        Ok(())
    }

    /// MANAGE_PAGES: the driver lends pages (1), no more than it is asked for, says that it cannot (0), or wants some back (2).
    fn manage_pages(&mut self, c: &mut Command<'_>) -> Result<(), Status> {
        const LIST: usize = 16;
        const TAKEN: Field = Field::new(0x40, 32);
        let count = c.be32(12) as usize;
        match c.modifier {
            0 => Ok(()),
            1 => {
                let list = c.from(LIST).get(..count * 8).ok_or(Status(status::BAD_INPUT_LEN))?;
                if self.pages.len() + count > (BOOT_PAGES + INIT_PAGES) as usize {
                    return Err(Status(status::LIMIT));
                }
                self.pages.extend(list.chunks_exact(8).map(|page| crate::bits::be64(page, 0)));
                Ok(())
            }
            2 => {
                let back = self.pages.split_off(self.pages.len().saturating_sub(count));
                c.put(TAKEN, back.len() as u64);
                let bytes: Vec<u8> = back.iter().flat_map(|page| page.to_be_bytes()).collect();
                c.output(LIST, bytes.len()).copy_from_slice(&bytes);
                Ok(())
            }
            _ => Err(Status(status::BAD_PARAM)),
        }
    }

    /// Puts an event of the device into the queue that it belongs to. Returns the vectors to raise.
    pub fn tell(&mut self, memory: &dyn Memory, event: Event) -> Result<Vec<usize>, Untold> {
        let queue = match event {
            Event::Completion { cqn } => self.cqs.event_queue(cqn),
            _ => None,
        };
        self.eqs.tell(memory, queue, event)
    }

    /// How many objects there are besides the device's, kinds without any left out.
    pub fn live(&self) -> Vec<(&'static str, usize)> {
        let mut live = self.objects.live();
        live.extend([("event queues", self.eqs.len()), ("lent pages", self.pages.len())]);
        live.retain(|(_, count)| *count != 0);
        live
    }
}
