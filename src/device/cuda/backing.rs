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
    /// it can be had from the host if the device's options have that bit.
    pub(super) fn flush(&self, context: &Context) -> Result<()> {
        let needs = *self.0.get_or_init(|| {
            let of = |attribute| device(context, attribute);
            let ordering = of(Device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
            let options = of(Device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
            let host = Flush::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as c_int;
            ordering.is_some_and(|ordering| ordering < ORDERED_FOR_OWNER)
                && options.is_some_and(|options| options & host != 0)
        });
        if !needs {
            return Ok(());
        }
        // SAFETY: numbers that the driver documents.
        unsafe { context.driver.flush_writes(OF_CURRENT_CONTEXT, TO_OWNER) }.unwrap_or(Ok(()))
    }
}

/// The reservation and the mapping of an address, as far as the driver knows them. With the context current.
pub(super) fn backing(context: &Context, address: u64) -> Option<Backing> {
    let range = of_range(context, address).or_else(|| of_allocation(context, address));
    let mapping = pair(
        context,
        address,
        Pointer::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
        Pointer::CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
    );
    let end = |(start, size): (u64, u64)| start.saturating_add(size);
    match (range, mapping) {
        (Some(range), mapping) => Some(Backing {
            reservation_base: range.0,
            end: mapping.map_or(u64::MAX, end).min(end(range)),
        }),
        (None, Some(mapping)) => Some(Backing {
            reservation_base: mapping.0,
            end: end(mapping),
        }),
        (None, None) => None,
    }
}

fn of_range(context: &Context, address: u64) -> Option<(u64, u64)> {
    pair(
        context,
        address,
        Pointer::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        Pointer::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    )
}

/// For drivers that do not know the attributes.
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
fn pair(context: &Context, address: u64, start: Pointer, size: Pointer) -> Option<(u64, u64)> {
    let (start, size) = (
        pointer::<u64>(context, start, address)?,
        pointer::<usize>(context, size, address)? as u64,
    );
    holds(start, size, address).then_some((start, size))
}

fn holds(start: u64, size: u64, address: u64) -> bool {
    address.checked_sub(start).is_some_and(|into| into < size)
}

/// An attribute of an address whose value is a number of this type.
fn pointer<T: Default>(context: &Context, attribute: Pointer, address: u64) -> Option<T> {
    let mut value = T::default();
    let out: *mut c_void = (&raw mut value).cast();
    // SAFETY: the attributes that this file asks for have values of the types that it asks with.
    let asked = unsafe {
        context
            .driver
            .pointer_attribute(out, attribute as c_uint, address)
    };
    asked.ok().map(|()| value)
}

fn device(context: &Context, attribute: Device) -> Option<c_int> {
    let mut value = 0;
    // SAFETY: writes one integer.
    let asked = unsafe {
        context
            .driver
            .device_attribute(&raw mut value, attribute as c_uint, context.ordinal)
    };
    matches!(asked, Some(Ok(()))).then_some(value)
}

/// What speaks for and against network adapters reaching this address, for people. With the context current.
pub(super) fn reach(context: &Context, address: u64) -> String {
    let word = |known: Option<bool>| match known {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    };
    let of = |attribute| word(device(context, attribute).map(|value| value != 0));
    // Whatever the width of that boolean is.
    let capable = pointer::<u64>(
        context,
        Pointer::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
        address,
    );
    format!(
        "GPUDirect RDMA of the device: {}, of this memory: {}, dma-buf: {}, kernel module {}: {}",
        of(Device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
        word(capable.map(|value| value != 0)),
        of(Device::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
        PEER_MODULES[0],
        word(node::has_module(&PEER_MODULES)),
    )
}
