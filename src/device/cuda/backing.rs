//! What the driver says about memory that others are to reach: which mapping it is, and whether they can.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUdevice_attribute as Device, CUflushGPUDirectRDMAWritesOptions_enum as Flush,
    CUpointer_attribute as Pointer,
};

use super::context::Context;
use crate::error::Result;
use crate::layout::Backing;
use crate::node;

/// The kernel modules that let network adapters reach a GPU's memory where dma-buf is not used.
const PEER_MODULES: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];

/// Writes of others are ordered before later work of the device that owns the memory.
const ORDERED_FOR_OWNER: c_int = 100;
const TO_OWNER: c_uint = ORDERED_FOR_OWNER as c_uint;
const OF_CURRENT_CONTEXT: c_uint = 0;

/// Whether writes of others have to be flushed; found out once.
#[derive(Debug, Default)]
pub(super) struct Landing(OnceLock<bool>);

impl Landing {
    /// With the context current. The driver's rule: writes need a flush unless they are ordered for the owner anyway, and
    /// it can be had from the host if the device's options have that bit. `DeviceFailed` also when that cannot be found out.
    pub(super) fn flush(&self, context: &Context) -> Result<()> {
        let needs = match self.0.get() {
            Some(needs) => *needs,
            None => *self.0.get_or_init({
                let needs = needs_flush(context)?;
                move || needs
            }),
        };
        if !needs {
            return Ok(());
        }
        // SAFETY: numbers that the driver documents.
        unsafe { context.driver.flush_writes(OF_CURRENT_CONTEXT, TO_OWNER) }.unwrap_or(Ok(()))
    }
}

fn needs_flush(context: &Context) -> Result<bool> {
    let of = |attribute| device(context, attribute);
    let ordering = of(Device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?;
    let options = of(Device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?;
    let host = Flush::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as c_int;
    Ok(
        ordering.is_some_and(|ordering| ordering < ORDERED_FOR_OWNER)
            && options.is_some_and(|options| options & host != 0),
    )
}

/// The reservation and the mapping of an address, as far as the driver knows them. With the context current.
///
/// Errors: `DeviceFailed`, not that the driver does not know.
pub(super) fn backing(context: &Context, address: u64) -> Result<Option<Backing>> {
    let range = match pair(
        context,
        address,
        Pointer::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        Pointer::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    )? {
        Some(range) => Some(range),
        None => of_allocation(context, address),
    };
    let mapping = pair(
        context,
        address,
        Pointer::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
        Pointer::CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
    )?;
    let end = |(start, size): (u64, u64)| start.saturating_add(size);
    Ok(match (range, mapping) {
        (Some(range), mapping) => Some(Backing {
            reservation_base: range.0,
            end: mapping.map_or(u64::MAX, end).min(end(range)),
        }),
        (None, Some(mapping)) => Some(Backing {
            reservation_base: mapping.0,
            end: end(mapping),
        }),
        (None, None) => None,
    })
}

/// For drivers that do not know the attributes; what it cannot say is not known.
fn of_allocation(context: &Context, address: u64) -> Option<(u64, u64)> {
    let (mut start, mut size) = (0, 0);
    // SAFETY: writes an address and a size; any address may be asked for.
    let asked = unsafe {
        context
            .driver
            .allocation(&raw mut start, &raw mut size, address)
    };
    let is_known = matches!(asked, Some(Ok(())));
    (is_known && holds(start, size as u64, address)).then_some((start, size as u64))
}

/// Start and size of what an address belongs to, if that is what two attributes say.
fn pair(
    context: &Context,
    address: u64,
    start: Pointer,
    size: Pointer,
) -> Result<Option<(u64, u64)>> {
    let start = pointer::<u64>(context, start, address)?;
    let size = pointer::<usize>(context, size, address)?;
    let both = start.zip(size).map(|(start, size)| (start, size as u64));
    Ok(both.filter(|&(start, size)| holds(start, size, address)))
}

fn holds(start: u64, size: u64, address: u64) -> bool {
    address.checked_sub(start).is_some_and(|into| into < size)
}

/// An attribute of an address whose value is a number of this type; `None` if the driver does not know it.
fn pointer<T: Default>(context: &Context, attribute: Pointer, address: u64) -> Result<Option<T>> {
    let mut value = T::default();
    let out: *mut c_void = (&raw mut value).cast();
    // SAFETY: the attributes that this file asks for have values of the types that it asks with.
    let known = unsafe {
        context
            .driver
            .pointer_attribute_if_known(out, attribute as c_uint, address)
    }?;
    Ok(known.then_some(value))
}

fn device(context: &Context, attribute: Device) -> Result<Option<c_int>> {
    let driver = context.driver;
    driver.device_attribute(attribute as c_uint, context.ordinal)
}

/// What speaks for and against network adapters reaching this address, for people. With the context current.
pub(super) fn reach(context: &Context, address: u64) -> Result<String> {
    let word = |known: Option<bool>| match known {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    };
    let of = |attribute| -> Result<&str> {
        Ok(word(device(context, attribute)?.map(|value| value != 0)))
    };
    // Whatever the width of that boolean is.
    let capable = pointer::<u64>(
        context,
        Pointer::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
        address,
    )?;
    Ok(format!(
        "GPUDirect RDMA of the device: {}, of this memory: {}, dma-buf: {}, kernel module {}: {}",
        of(Device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)?,
        word(capable.map(|value| value != 0)),
        of(Device::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)?,
        PEER_MODULES[0],
        word(node::has_module(&PEER_MODULES)),
    ))
}
