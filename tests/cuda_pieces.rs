//! Batches of many pieces on the CUDA device, by each of the driver's ways and by the kernel, against the
//! stand-in of the driver (`cpp_tests/cuda`), which runs the kernel's source.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(unsafe_code, reason = "copies between addresses of the stand-in")]

#[allow(dead_code, reason = "tests of order and errors need more of it")]
mod cuda_stand_in;

use cuda_stand_in::{self as driver, Handle, in_child, in_children};
use kvbridge::device::cuda::{CudaDevice, LEAST_PIECES, MOST_BYTES, Way};
use kvbridge::device::{Device, Direction, StagingMemory, Stream, Transfer};
use kvbridge::error::{Error, Kind};
use kvbridge::layout::{Group, Layout, Region};

const BYTES: usize = 1 << 20;

/// All that there is; no batch; no batch and no rows; no kernel.
const VARIANTS: [&[&str]; 4] = [
    &[],
    &["WITHOUT_BATCH_V2", "WITHOUT_BATCH"],
    &["WITHOUT_BATCH_V2", "WITHOUT_BATCH", "WITHOUT_2D"],
    &["WITHOUT_KERNELS"],
];

const WAYS: [Way; 4] = [Way::Kernel, Way::Batch, Way::Rows, Way::Single];

/// An engine's thread with its context, stream and cache, and our device on it.
struct Machine {
    context: Handle,
    stream: Handle,
    cache: u64,
    device: CudaDevice,
    staging: StagingMemory,
}

impl Machine {
    /// With the kernel, where the driver has what that needs.
    fn new() -> Self {
        Self::with(|device| {
            assert_eq!(device.load_kernel(), driver::has("cuLaunchKernel"));
        })
    }

    fn with(prepare: impl FnOnce(&mut CudaDevice)) -> Self {
        let context = driver::context(0);
        let stream = driver::stream(false);
        let cache = driver::allocate(BYTES);
        let mut device = CudaDevice::adopt(Some(0)).unwrap();
        prepare(&mut device);
        let staging = device.stage(BYTES as u64).unwrap();
        Self {
            context,
            stream,
            cache,
            device,
            staging,
        }
    }

    /// Pieces by offset in the cache, offset in staging, and size.
    fn transfers(&self, pieces: &[(usize, usize, usize)]) -> Vec<Transfer> {
        let start = self.staging.range().start;
        let transfer = |&(cache, staging, size): &(usize, usize, usize)| Transfer {
            cache: self.cache + cache as u64,
            staging: start + staging as u64,
            size: size as u64,
        };
        pieces.iter().map(transfer).collect()
    }

    fn copy(
        &self,
        behind: Option<Stream>,
        direction: Direction,
        pieces: &[(usize, usize, usize)],
    ) -> Result<(), Error> {
        // SAFETY: the stand-in's memory and staging, which only this test touches, each byte once.
        unsafe { self.device.copy(behind, direction, &self.transfers(pieces)) }
    }

    fn stream(&self) -> Option<Stream> {
        Some(Stream(self.stream as u64))
    }

    fn end(self) {
        self.end_with(0);
    }

    /// Gives all back but for `kept` things that could not be.
    fn end_with(self, kept: i64) {
        drop(self.staging);
        drop(self.device);
        driver::destroy_stream(self.stream);
        driver::free(self.cache);
        assert_eq!(driver::alive(), kept);
        assert_eq!(driver::copies_in_flight(), 0);
        driver::destroy_context(self.context);
    }
}

/// Bytes that repeat nowhere soon.
fn noise(seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as u8
    };
    std::iter::repeat_with(next).take(BYTES).collect()
}

/// `count` pieces that leave gaps between them, of sizes and places that are even or anything but.
fn scattered(count: usize, seed: usize) -> Vec<(usize, usize, usize)> {
    let (mut cache, mut staging) = (0, 0);
    let piece = |at: usize| {
        let luck = (at + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as usize) >> 16;
        let size = match luck % 4 {
            0 => 256,
            1 => 1 + luck % 40,
            2 => 16 * (1 + luck % 70),
            _ => 4 * (1 + luck % 300),
        };
        // Aligned alike to 16, to 4, or not at all.
        let (skew, other) = match luck / 4 % 4 {
            0 => (0, 0),
            1 => (luck % 16, luck % 16),
            2 => (4 * (luck % 4), 4 * (luck / 16 % 4)),
            _ => (luck % 13, luck / 13 % 13),
        };
        let place = (cache + skew, staging + other, size);
        cache += (skew + size).next_multiple_of(16) + 16;
        staging += (other + size).next_multiple_of(16) + 16 * (1 + at % 2);
        place
    };
    let pieces: Vec<_> = (0..count).map(piece).collect();
    assert!(cache <= BYTES && staging <= BYTES);
    pieces
}

/// `count` pieces of one size, one behind the other in staging and far apart in the cache.
fn even(count: usize, size: usize) -> Vec<(usize, usize, usize)> {
    let apart = BYTES / count;
    (0..count).map(|at| (at * apart, at * size, size)).collect()
}

/// Copies there and back, and compares every byte, also those that are none of a piece's.
fn travels(machine: &mut Machine, pieces: &[(usize, usize, usize)], seed: u32) {
    let (cache, staged) = (noise(seed), noise(seed + 1));
    driver::write(machine.cache, &cache);
    machine.staging.bytes_mut().copy_from_slice(&staged);
    let mut expected = staged.clone();
    for &(from, to, size) in pieces {
        expected[to..to + size].copy_from_slice(&cache[from..from + size]);
    }
    machine.copy(None, Direction::Gather, pieces).unwrap();
    assert!(machine.staging.bytes() == expected, "gathered");

    machine.staging.bytes_mut().copy_from_slice(&staged);
    let mut expected = cache;
    for &(to, from, size) in pieces {
        expected[to..to + size].copy_from_slice(&staged[from..from + size]);
    }
    machine
        .copy(machine.stream(), Direction::Scatter, pieces)
        .unwrap();
    assert!(driver::read(machine.cache, BYTES) == expected, "scattered");
    assert!(machine.staging.bytes() == staged, "the source is as it was");
}

fn calls() -> [i64; 4] {
    let functions = [
        "cuLaunchKernel",
        "cuMemcpyBatchAsync_v2",
        "cuMemcpy2DAsync_v2",
        "cuMemcpyAsync",
    ];
    functions.map(driver::calls)
}

#[test]
fn every_byte_travels_by_every_way() {
    in_children("every_byte_travels_by_every_way", &VARIANTS, || {
        let mut machine = Machine::new();
        for way in WAYS {
            assert_eq!(
                machine.device.has_way(way),
                match way {
                    Way::Kernel => driver::has("cuLaunchKernel"),
                    Way::Batch => driver::has("cuMemcpyBatchAsync_v2"),
                    Way::Rows => driver::has("cuMemcpy2DAsync_v2"),
                    Way::Single => true,
                }
            );
            machine.device.take_only(Some(way));
            // The kernel is what is ours of all this.
            let is_first = driver::has("cuMemcpyBatchAsync_v2") && driver::has("cuLaunchKernel");
            let step = if way == Way::Kernel && is_first {
                1
            } else {
                17
            };
            let counts = (1..=128).step_by(step).chain([169, 170, 171, 340, 400]);
            for (seed, count) in counts.enumerate() {
                travels(&mut machine, &scattered(count, seed), seed as u32);
            }
            for count in [1, 2, 3, 64, 200] {
                travels(&mut machine, &even(count, 4096), 7);
                travels(&mut machine, &even(count, 1000), 8);
            }
            // Far more than a block of the kernel takes at once.
            travels(
                &mut machine,
                &[(5, 5, 900_000), (910_000, 910_016, 100_001)],
                9,
            );
        }
        // Whatever is chosen.
        machine.device.take_only(None);
        for count in [1, LEAST_PIECES - 1, LEAST_PIECES, 128] {
            travels(&mut machine, &scattered(count, count), 3);
        }
        machine.end();
    });
}

#[test]
fn many_small_pieces_are_the_kernels() {
    in_child("many_small_pieces_are_the_kernels", || {
        let machine = Machine::new();
        let made = |pieces: &[(usize, usize, usize)]| {
            driver::reset();
            machine.copy(None, Direction::Gather, pieces).unwrap();
            assert_eq!(driver::calls("cuStreamSynchronize"), 1);
            calls()
        };
        let few = LEAST_PIECES - 1;
        assert_eq!(made(&even(LEAST_PIECES, 512)), [1, 0, 0, 0]);
        assert_eq!(made(&even(few, 512)), [0, 1, 0, 0]);
        let most = MOST_BYTES as usize;
        assert_eq!(made(&even(LEAST_PIECES, most)), [1, 0, 0, 0]);
        assert_eq!(made(&even(LEAST_PIECES, most + 1)), [0, 1, 0, 0]);
        assert_eq!(made(&even(170, 512)), [1, 0, 0, 0]);
        assert_eq!(made(&even(171, 512)), [2, 0, 0, 0]);
        // Staging that is not one memory has no one distance.
        let other = machine.device.stage(4096).unwrap();
        let mut transfers = machine.transfers(&even(LEAST_PIECES, 512));
        transfers[3].staging = other.range().start;
        driver::reset();
        // SAFETY: as in `Machine::copy`.
        unsafe { machine.device.copy(None, Direction::Gather, &transfers) }.unwrap();
        assert_eq!(calls(), [0, 1, 0, 0]);
        drop(other);
        machine.end();
    });
}

#[test]
fn even_pieces_travel_as_rows_where_there_is_no_batch() {
    let variants: [&[&str]; 1] = [&["WITHOUT_BATCH_V2", "WITHOUT_BATCH", "WITHOUT_KERNELS"]];
    in_children(
        "even_pieces_travel_as_rows_where_there_is_no_batch",
        &variants,
        || {
            let mut machine = Machine::new();
            let mut made = |pieces: &[(usize, usize, usize)]| {
                driver::reset();
                machine.copy(None, Direction::Scatter, pieces).unwrap();
                let made = calls();
                travels(&mut machine, pieces, 5);
                made
            };
            assert_eq!(made(&even(64, 512)), [0, 0, 1, 0]);
            assert_eq!(made(&even(1, 512)), [0, 0, 0, 1]);
            // Another size, another distance, and a way back begin another call.
            let run = |cache: usize, staging: usize, step: usize| {
                let piece = move |at: usize| (cache + at * step, staging + at * 512, 512);
                (0..4).map(piece)
            };
            let mut pieces: Vec<_> = run(0, 0, 1024).collect();
            pieces.extend(run(8192, 8192, 2048));
            assert_eq!(made(&pieces), [0, 0, 2, 0]);
            pieces.insert(4, (65536, 65536, 100));
            assert_eq!(made(&pieces), [0, 0, 2, 1]);
            pieces = run(0, 0, 1024).rev().collect();
            assert_eq!(made(&pieces), [0, 0, 0, 4]);
            machine.end();
        },
    );
}

/// A launch, or a copy in rows, that does nothing is noticed.
#[test]
fn each_call_that_moves_bytes_is_needed() {
    let variants: [&[&str]; 2] = [
        &[],
        &["WITHOUT_BATCH_V2", "WITHOUT_BATCH", "WITHOUT_KERNELS"],
    ];
    in_children("each_call_that_moves_bytes_is_needed", &variants, || {
        let mut machine = Machine::new();
        let function = if driver::has("cuLaunchKernel") {
            "cuLaunchKernel"
        } else {
            "cuMemcpy2DAsync_v2"
        };
        let pieces = even(64, 512);
        for skipped in [true, false] {
            if skipped {
                driver::skip(function);
            }
            driver::write(machine.cache, &[7; BYTES]);
            machine.staging.bytes_mut().fill(1);
            machine.copy(None, Direction::Gather, &pieces).unwrap();
            let arrived = machine.staging.bytes()[..64 * 512]
                .iter()
                .all(|it| *it == 7);
            assert_eq!(arrived, !skipped, "{function}");
            driver::reset();
        }
        machine.end();
    });
}

#[test]
fn a_kernel_comes_behind_the_stream_and_has_ended_when_the_copy_returns() {
    in_child(
        "a_kernel_comes_behind_the_stream_and_has_ended_when_the_copy_returns",
        || {
            let mut machine = Machine::new();
            let pieces = even(64, 512);
            // What nobody waits for never happens.
            driver::lazy(true);
            driver::write(machine.cache, &[1; BYTES]);
            driver::fill(machine.stream, machine.cache, 2, BYTES);
            machine
                .copy(machine.stream(), Direction::Gather, &pieces)
                .unwrap();
            assert_eq!(driver::copies_in_flight(), 0);
            assert!(
                machine.staging.bytes()[..64 * 512]
                    .iter()
                    .all(|it| *it == 2)
            );
            machine.staging.bytes_mut().fill(3);
            driver::fill(machine.stream, machine.cache, 4, BYTES);
            machine
                .copy(machine.stream(), Direction::Scatter, &pieces)
                .unwrap();
            assert_eq!(driver::copies_in_flight(), 0);
            assert!(driver::read(machine.cache, 512).iter().all(|it| *it == 3));
            assert_eq!(driver::calls("cuMemcpyBatchAsync_v2"), 0);

            // Without the one wait it would not have.
            driver::skip("cuStreamSynchronize");
            machine.copy(None, Direction::Gather, &pieces).unwrap();
            assert_eq!(driver::copies_in_flight(), 1);
            driver::reset();
            driver::lazy(false);
            machine.copy(None, Direction::Gather, &pieces).unwrap();
            machine.end();
        },
    );
}

fn layout(cache: u64, regions: usize, size: u64) -> Layout {
    let mut layout = Layout::new(0);
    layout
        .add_group(Group {
            id: 0,
            window: 0,
            number_format: "float16".to_owned(),
            layout_tag: String::new(),
            layer_ids: vec![0],
        })
        .unwrap();
    for at in 0..regions as u64 {
        let region = Region {
            base: cache + at * size,
            size,
            stride: size,
            slots: 1,
            reservation_base: 0,
        };
        layout.add_region(0, region).unwrap();
    }
    layout
}

#[test]
fn a_layout_of_large_pieces_loads_no_kernel() {
    in_child("a_layout_of_large_pieces_loads_no_kernel", || {
        for (size, loads) in [(MOST_BYTES + 1, 0), (MOST_BYTES, 1)] {
            driver::context(0);
            driver::reset();
            let machine = Machine::with(|device| device.prepare(&layout(4096, 4, size)));
            assert_eq!(driver::calls("cuModuleLoadData"), loads);
            assert_eq!(driver::calls("cuLaunchKernel"), loads, "tried out at once");
            assert_eq!(machine.device.has_way(Way::Kernel), loads == 1);
            machine.end();
        }
    });
}

/// Whatever of it fails, pieces travel by copies, and nothing is left.
#[test]
fn without_its_kernel_a_device_copies() {
    in_child("without_its_kernel_a_device_copies", || {
        // The third synchronises after the kernel was tried out.
        for (function, has) in [
            ("cuModuleLoadData", false),
            ("cuModuleGetFunction", false),
            ("cuLaunchKernel", false),
            ("cuStreamSynchronize", false),
            ("cuStreamCreate", false),
            ("cuEventCreate", false),
            ("cuMemHostGetDevicePointer_v2", true),
        ] {
            let mut machine = Machine::with(|device| {
                driver::fail(function, 1, 999);
                assert_eq!(device.load_kernel(), has, "{function}");
            });
            assert_eq!(driver::failed(), function);
            driver::reset();
            travels(&mut machine, &scattered(100, 1), 1);
            assert_eq!(calls()[..2], [0, 2], "{function}");
            machine.end();
        }
        // A module that cannot be unloaded is kept, and that is all.
        let machine = Machine::new();
        driver::fail("cuModuleUnload", 0, 999);
        machine.end_with(1);
    });
}

/// Fails each call that these operations make, one after the other.
#[test]
fn every_call_may_fail() {
    in_children("every_call_may_fail", &VARIANTS[..2], || {
        type Operation = fn(&mut Machine) -> Result<(), Error>;
        let operations: [(Operation, Way); 3] = [
            (
                |machine| machine.copy(machine.stream(), Direction::Gather, &even(200, 512)),
                Way::Kernel,
            ),
            (
                |machine| machine.copy(None, Direction::Scatter, &even(20, 512)),
                Way::Kernel,
            ),
            (
                |machine| machine.copy(machine.stream(), Direction::Gather, &scattered(20, 1)),
                Way::Rows,
            ),
        ];
        let (mut failures, mut kept) = (0, 0);
        for (operation, way) in operations {
            for nth in 1.. {
                let mut machine = Machine::new();
                machine.device.take_only(Some(way));
                let own = driver::context(1);
                driver::lazy(true);
                driver::reset();
                driver::fail("", nth, 999);
                let result = operation(&mut machine);
                let failed = driver::failed();
                driver::reset();
                assert_eq!(driver::copies_in_flight(), 0, "{failed}");
                assert_eq!(driver::current(), own, "{failed}");
                let is_kept = failed.contains("Destroy");
                if failed.is_empty()
                    || failed.starts_with("cuCtxGetC")
                    || failed == "cuCtxSetCurrent"
                    || failed == "cuThreadExchangeStreamCaptureMode"
                    || is_kept
                {
                    result.unwrap();
                } else {
                    let error = result.unwrap_err();
                    assert_eq!(error.kind(), Kind::DeviceFailed, "{error}");
                    let what = format!("{failed}: CUDA_ERROR_UNKNOWN (999)");
                    assert!(error.message().contains(&what), "{error}");
                    assert!(error.message().contains("CUDA device 0"), "{error}");
                    failures += 1;
                }
                // It goes on afterwards.
                operation(&mut machine).unwrap();
                driver::lazy(false);
                driver::set_current(machine.context);
                kept += i64::from(is_kept);
                machine.end_with(kept);
                driver::destroy_context(own);
                if failed.is_empty() {
                    break;
                }
            }
        }
        assert!(failures > 8, "{failures}");
    });
}

#[test]
fn an_error_names_what_it_is_about() {
    in_children("an_error_names_what_it_is_about", &VARIANTS[..2], || {
        let mut machine = Machine::new();
        machine.device.take_only(Some(Way::Kernel));
        driver::fail("cuLaunchKernel", 2, 999);
        let error = machine
            .copy(None, Direction::Gather, &even(200, 512))
            .unwrap_err();
        assert_eq!(
            error.message(),
            "CUDA device 0: Gather of 200 copies, 102400 bytes: the kernel for copies 170 to 200: \
             cuLaunchKernel: CUDA_ERROR_UNKNOWN (999)"
        );
        driver::reset();
        machine.device.take_only(Some(Way::Rows));
        driver::fail("cuMemcpy2DAsync_v2", 0, 999);
        let error = machine
            .copy(None, Direction::Scatter, &even(4, 512))
            .unwrap_err();
        let text = error.message();
        assert!(text.contains("copy 0, 512 bytes from 0x"), "{text}");
        assert!(text.contains("and 3 more of its size"), "{text}");
        driver::reset();
        machine.end();
    });
}
