//! What the driver asks of the adapter and its InfiniBand port.

use super::command::{Command, Status};
use crate::bits::context::vport;
use crate::bits::field::Field;
use crate::bits::firmware::{register, status};
use crate::device::Device;
use crate::port::{Link, Port};

/// Where an answer's data begin.
const DATA: usize = 16;

fn first(device: &Device) -> Result<&Port, Status> {
    device.ports().first().ok_or(Status(status::BAD_RESOURCE))
}

/// QUERY_ADAPTER: who made it, and which board it is.
pub(super) fn query_adapter(c: &mut Command<'_>) -> Result<(), Status> {
    const BYTES: usize = 0x100;
    const VENDOR: Field = Field::new(0xc8, 24);
    const BOARD: usize = 0xf0;
    let out = c.output(DATA, BYTES);
    VENDOR.set(out, 0x2c9);
    crate::bits::put(out, BOARD, b"SCX0000000001");
    Ok(())
}

/// Capabilities of the port to begin with, as an adapter's has them that runs no subnet manager: traps, system image GUID, extended
/// speeds, and what else always is.
pub(super) const CAPABILITIES: u32 = 0x2650_e848;
/// The one that the driver may set and clear: somebody manages connections.
const CHANGEABLE: u32 = 1 << 16;

/// MODIFY_HCA_VPORT_CONTEXT: the port's capabilities.
pub(super) fn modify_context(capabilities: &mut u32, c: &Command<'_>) -> Result<(), Status> {
    let context = c.context(DATA, vport::BYTES)?;
    let select = vport::CAPABILITIES_SELECT.get32(context);
    if select & !CHANGEABLE != 0 {
        return Err(Status(status::BAD_PARAM));
    }
    *capabilities = *capabilities & !select | vport::CAPABILITIES.get32(context) & select;
    Ok(())
}

/// QUERY_HCA_VPORT_CONTEXT.
pub(super) fn query_context(device: &Device, capabilities: u32, c: &mut Command<'_>) -> Result<(), Status> {
    const DOWN: u64 = 1;
    const ACTIVE: u64 = 4;
    const PHYSICAL_DISABLED: u64 = 3;
    const PHYSICAL_LINK_UP: u64 = 5;
    let (guid, port) = (device.guid(), first(device)?.clone());
    let Link::InfiniBand { lid } = port.link else { return Err(Status(status::BAD_PARAM)) };
    let port_guid = port.gids.first().copied().flatten().map_or(guid, |entry| crate::bits::be64(&entry.gid, 8));
    let (state, physical) = if port.active { (ACTIVE, PHYSICAL_LINK_UP) } else { (DOWN, PHYSICAL_DISABLED) };
    let out = c.output(DATA, vport::BYTES);
    for (field, value) in [
        (vport::PHYSICAL_STATE, physical),
        (vport::PORT_STATE, state),
        (vport::STATE, state),
        (vport::SYSTEM_GUID, guid),
        (vport::PORT_GUID, port_guid),
        (vport::NODE_GUID, guid),
        (vport::CAPABILITIES, capabilities.into()),
        (vport::CAPABILITIES_SELECT, CHANGEABLE.into()),
        (vport::LID, lid.into()),
        (vport::SUBNET_TIMEOUT, 18),
        (vport::SM_LID, 1),
    ] {
        field.set(out, value);
    }
    Ok(())
}

/// An index that asks for the whole table.
const WHOLE_TABLE: u16 = 0xffff;
/// Where the index asked for is.
const INDEX: usize = 14;

/// QUERY_HCA_VPORT_GID.
pub(super) fn query_gid(device: &Device, c: &mut Command<'_>) -> Result<(), Status> {
    const COUNT: Field = Field::new(0x60, 16);
    let gids: Vec<_> = first(device)?.gids.iter().map(|entry| entry.map_or([0; 16], |e| e.gid)).collect();
    let wanted = match c.be16(INDEX) {
        WHOLE_TABLE => &gids[..],
        index => gids.get(usize::from(index)..=usize::from(index)).ok_or(Status(status::BAD_INDEX))?,
    };
    c.put(COUNT, wanted.len() as u64);
    c.output(DATA, 16 * wanted.len()).copy_from_slice(&wanted.concat());
    Ok(())
}

/// QUERY_HCA_VPORT_PKEY. The driver takes a table of 128 for granted; places past the port's are empty.
pub(super) fn query_pkey(device: &Device, c: &mut Command<'_>) -> Result<(), Status> {
    const PLACES: usize = 128;
    let pkeys = &first(device)?.pkeys;
    let at = |index: usize| u32::from(pkeys.get(index).copied().unwrap_or(0)).to_be_bytes();
    let wanted: Vec<_> = match c.be16(INDEX) {
        WHOLE_TABLE => (0..PLACES).map(at).collect(),
        index if usize::from(index) < PLACES => vec![at(index.into())],
        _ => return Err(Status(status::BAD_INDEX)),
    };
    c.output(DATA, 4 * wanted.len()).copy_from_slice(&wanted.concat());
    Ok(())
}

/// ACCESS_REG: modifier 0 writes a register, 1 reads it.
pub(super) fn access_register(device: &Device, c: &mut Command<'_>) -> Result<(), Status> {
    const READ: u16 = 1;
    const ID: usize = 10;
    let id = c.be16(ID);
    match (id, c.modifier) {
        (register::PTYS, READ) => {
            /// Four lanes of EDR; all up to that are there.
            const FIELDS: [(Field, u64); 5] = [
                (Field::new(0x1d, 3), 1),
                (Field::new(0x80, 16), 0x3),
                (Field::new(0x90, 16), 0x3f),
                (Field::new(0x140, 16), 0x4),
                (Field::new(0x150, 16), 0x20),
            ];
            let out = c.output(DATA, 0x40);
            FIELDS.iter().for_each(|(field, value)| field.set(out, *value));
        }
        (register::PMTU, READ) => {
            let mtu = first(device)?.mtu_bytes;
            let out = c.output(DATA, 0x10);
            for at in [0x20, 0x40, 0x60] {
                Field::new(at, 16).set(out, mtu.into());
            }
        }
        (register::PVLC, READ) => {
            let out = c.output(DATA, 0x10);
            Field::new(0x3c, 4).set(out, 4);
            Field::new(0x7c, 4).set(out, 4);
        }
        (register::NODE_DESCRIPTION, READ) => {
            crate::bits::put(c.output(DATA, 0x40), 0, b"software ConnectX");
        }
        (register::NODE_DESCRIPTION | register::HOST_ENDIANNESS, _) => {
            c.output(DATA, 0x10);
        }
        _ => return Err(Status(status::BAD_PARAM)),
    }
    Ok(())
}

/// MAD_IFC: a management datagram for the port. Nothing is counted, and nothing else is managed.
pub(super) fn management_datagram(c: &mut Command<'_>) -> Result<(), Status> {
    const BYTES: usize = 256;
    const CLASS: usize = 1;
    const PERFORMANCE: u8 = 0x04;
    const METHOD: usize = 3;
    const RESPONSE: u8 = 0x81;
    const STATUS: usize = 5;
    const NO_SUCH_ATTRIBUTE: u8 = 3 << 2;
    let request = crate::bits::array::<BYTES>(c.input, DATA);
    let out = c.output(DATA, BYTES);
    out.copy_from_slice(&request);
    out[METHOD] = RESPONSE;
    if request[CLASS] != PERFORMANCE {
        out[STATUS] = NO_SUCH_ATTRIBUTE;
    }
    Ok(())
}
