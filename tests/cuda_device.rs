//! The device on the CUDA driver, against the stand-in of that driver (`cpp_tests/cuda`): order,
//! contexts, errors, and that nothing is left.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(unsafe_code, reason = "copies between addresses of the stand-in")]

mod cuda_stand_in;

use std::sync::Arc;
use std::thread;

use cuda_stand_in::{self as driver, Handle, in_child, in_children, without_driver};
use kvbridge::device::{CudaDevice, Device, Direction, StagingMemory, Stream, Transfer};
use kvbridge::engine::DeviceChoice;
use kvbridge::error::{Error, Kind};
use kvbridge::layout::{Group, Layout, Region};

const PAGE: usize = 256;
const PAGES: usize = 8;

/// Every batch function, one, none; none, and no rows either.
const VARIANTS: [&[&str]; 4] = [
    &[],
    &["WITHOUT_BATCH_V2"],
    &["WITHOUT_BATCH_V2", "WITHOUT_BATCH"],
    &["WITHOUT_BATCH_V2", "WITHOUT_BATCH", "WITHOUT_2D"],
];

/// An engine's thread with its context, stream and cache, and our device on it.
struct Machine {
    context: Handle,
    stream: Handle,
    cache: u64,
    device: Arc<CudaDevice>,
    staging: StagingMemory,
}

impl Machine {
    fn new() -> Self {
        let context = driver::context(0);
        let stream = driver::stream(false);
        let cache = driver::allocate(PAGE * PAGES);
        let device = Arc::new(CudaDevice::adopt(Some(0)).unwrap());
        let staging = device.stage((PAGE * PAGES) as u64).unwrap();
        Self {
            context,
            stream,
            cache,
            device,
            staging,
        }
    }

    /// Page `i` of the cache and place `i` of staging, for some of them.
    fn transfers(&self, pages: &[u64]) -> Vec<Transfer> {
        let size = PAGE as u64;
        let transfer = |page: &u64| Transfer {
            cache: self.cache + page * size,
            staging: self.staging.range().start + page * size,
            size,
        };
        pages.iter().map(transfer).collect()
    }

    fn stream(&self) -> Option<Stream> {
        Some(Stream(self.stream as u64))
    }

    fn gather(&self, behind: Option<Stream>, pages: &[u64]) -> Result<(), Error> {
        copy(
            &self.device,
            behind,
            Direction::Gather,
            &self.transfers(pages),
        )
    }

    fn scatter(&self, behind: Option<Stream>, pages: &[u64]) -> Result<(), Error> {
        copy(
            &self.device,
            behind,
            Direction::Scatter,
            &self.transfers(pages),
        )
    }

    fn cached(&self, page: usize) -> u8 {
        uniform(&driver::read(self.cache + (page * PAGE) as u64, PAGE))
    }

    fn staged(&self, page: usize) -> u8 {
        uniform(&self.staging.bytes()[page * PAGE..][..PAGE])
    }

    fn stage(&mut self, page: usize, value: u8) {
        self.staging.bytes_mut()[page * PAGE..][..PAGE].fill(value);
    }

    /// Gives all back; what is alive then was leaked.
    fn end(self) {
        self.end_with(0);
    }

    /// The same when so many things could not be given back.
    fn end_with(self, kept: i64) {
        drop(self.staging);
        drop(self.device);
        driver::destroy_stream(self.stream);
        driver::free(self.cache);
        assert_eq!(driver::alive(), kept);
        assert_eq!(driver::copies_in_flight(), 0);
    }
}

fn copy(
    device: &CudaDevice,
    behind: Option<Stream>,
    direction: Direction,
    transfers: &[Transfer],
) -> Result<(), Error> {
    // SAFETY: pages of the stand-in's memory and staging, which only this test touches, each once.
    unsafe { device.copy(behind, direction, transfers) }
}

/// The value of all bytes.
fn uniform(bytes: &[u8]) -> u8 {
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
    bytes[0]
}

/// Waits until a thread waits in `function`, or has ended without.
fn until_waited_in<T>(function: &str, thread: &thread::ScopedJoinHandle<'_, T>) {
    while !driver::is_waited_in(function) && !thread.is_finished() {
        thread::yield_now();
    }
}

/// What the staging memory holds of page 0 when it was saved behind a pass that fills it with 2.
fn saved_behind_a_pass(machine: &Machine, stream: Handle, recorded: Stream) -> u8 {
    driver::write(machine.cache, &[1; PAGE]);
    driver::hold(stream, true);
    driver::fill(stream, machine.cache, 2, PAGE);
    let event = machine.device.record(recorded).unwrap();
    thread::scope(|scope| {
        let save = scope.spawn(|| {
            machine.device.wait(&event)?;
            machine.gather(None, &[0])
        });
        until_waited_in("cuEventSynchronize", &save);
        driver::hold(stream, false);
        save.join().unwrap().unwrap();
    });
    driver::synchronize(stream);
    machine.staged(0)
}

/// What work of the engine's read from page 0 that was on its stream before a load of 9 into it. A load
/// that waits for that stream cannot end before; another one does.
fn read_before_a_load(machine: &mut Machine, waits: bool) -> u8 {
    machine.stage(0, 9);
    driver::write(machine.cache, &[1; PAGE]);
    driver::hold(machine.stream, true);
    let (page, other) = (machine.cache, machine.cache + PAGE as u64);
    driver::copy(machine.stream, other, page, PAGE);
    let machine = &*machine;
    thread::scope(|scope| {
        let load = scope.spawn(|| machine.scatter(machine.stream(), &[0]));
        if waits {
            until_waited_in("cuStreamSynchronize", &load);
        } else {
            while !load.is_finished() {
                thread::yield_now();
            }
        }
        driver::hold(machine.stream, false);
        load.join().unwrap().unwrap();
    });
    // What comes later reads the load.
    driver::copy(machine.stream, page + 2 * PAGE as u64, page, PAGE);
    driver::synchronize(machine.stream);
    assert_eq!(machine.cached(2), 9);
    machine.cached(1)
}

#[test]
fn pages_travel_with_one_call_and_one_wait() {
    in_children("pages_travel_with_one_call_and_one_wait", &VARIANTS, || {
        let mut machine = Machine::new();
        for page in 0..PAGES as u8 {
            let start = machine.cache + u64::from(page) * PAGE as u64;
            driver::write(start, &[page + 1; PAGE]);
        }
        let pages: Vec<u64> = (0..PAGES as u64).collect();
        driver::reset();
        machine.gather(None, &pages).unwrap();
        assert_eq!(driver::calls("cuStreamSynchronize"), 1);
        assert_eq!(driver::calls("cuEventRecord"), 0, "behind nothing");
        let functions = [
            "cuMemcpyBatchAsync_v2",
            "cuMemcpyBatchAsync",
            "cuMemcpy2DAsync_v2",
            "cuMemcpyAsync",
        ];
        let expected = match functions.map(driver::has) {
            [true, ..] => [1, 0, 0, 0],
            [false, true, ..] => [0, 1, 0, 0],
            [false, false, true, _] => [0, 0, 1, 0],
            _ => [0, 0, 0, PAGES as i64],
        };
        assert_eq!(functions.map(driver::calls), expected);
        for page in 0..PAGES {
            assert_eq!(machine.staged(page), page as u8 + 1);
            machine.stage(page, page as u8 + 100);
        }
        machine.scatter(machine.stream(), &pages).unwrap();
        for page in 0..PAGES {
            assert_eq!(machine.cached(page), page as u8 + 100);
        }
        // Nothing to do is nothing done.
        driver::reset();
        machine.scatter(machine.stream(), &[]).unwrap();
        assert_eq!(driver::calls(""), 0);
        machine.end();
    });
}

#[test]
fn a_save_reads_what_the_pass_wrote() {
    in_child("a_save_reads_what_the_pass_wrote", || {
        let machine = Machine::new();
        for _ in 0..3 {
            assert_eq!(
                saved_behind_a_pass(&machine, machine.stream, Stream(machine.stream as u64)),
                2
            );
        }
        // The legacy stream comes behind all blocking ones.
        let blocking = driver::stream(true);
        assert_eq!(saved_behind_a_pass(&machine, blocking, Stream(0)), 2);
        driver::destroy_stream(blocking);
        machine.end();
    });
}

#[test]
fn a_load_comes_behind_what_the_stream_has_and_before_what_comes() {
    in_child(
        "a_load_comes_behind_what_the_stream_has_and_before_what_comes",
        || {
            let mut machine = Machine::new();
            for _ in 0..3 {
                assert_eq!(read_before_a_load(&mut machine, true), 1);
            }
            machine.end();
        },
    );
}

/// Without any one of our waits a test above fails.
#[test]
fn each_wait_is_needed() {
    in_child("each_wait_is_needed", || {
        let mut machine = Machine::new();
        let stream = Stream(machine.stream as u64);
        for function in ["cuEventRecord", "cuEventSynchronize"] {
            driver::skip(function);
            assert_eq!(saved_behind_a_pass(&machine, machine.stream, stream), 1);
            driver::reset();
        }
        for function in ["cuEventRecord", "cuStreamWaitEvent"] {
            driver::skip(function);
            assert_eq!(read_before_a_load(&mut machine, false), 9);
            driver::reset();
        }
        driver::skip("cuStreamSynchronize");
        driver::lazy(true);
        machine.gather(None, &[0, 1]).unwrap();
        assert_eq!(driver::copies_in_flight(), 2);
        driver::lazy(false);
        driver::reset();
        // Of a thread that has no context of its own.
        driver::skip("cuCtxSetCurrent");
        let error = thread::scope(|scope| {
            let save = scope.spawn(|| machine.gather(None, &[0]));
            save.join().unwrap().unwrap_err()
        });
        assert_eq!(error.kind(), Kind::DeviceFailed);
        driver::reset();
        machine.gather(None, &[0]).unwrap();
        // The stream that could be neither waited for nor destroyed there, and its event.
        machine.end_with(2);
    });
}

#[test]
fn nothing_runs_when_a_copy_returns() {
    in_children("nothing_runs_when_a_copy_returns", &VARIANTS, || {
        let machine = Machine::new();
        // What nobody waits for never ends.
        driver::lazy(true);
        machine.gather(None, &[0, 1, 2]).unwrap();
        assert_eq!(driver::copies_in_flight(), 0);

        // The first of three is refused, whose others are queued before it or after it.
        for wrong in 0..3 {
            let mut transfers = machine.transfers(&[0, 1, 2]);
            transfers[wrong].cache = 4096;
            let error = copy(&machine.device, None, Direction::Gather, &transfers).unwrap_err();
            assert_eq!(error.kind(), Kind::DeviceFailed);
            let text = error.message();
            assert!(text.contains("CUDA_ERROR_INVALID_VALUE (1)"), "{text}");
            assert!(
                text.contains("CUDA device 0: Gather of 3 copies, 768 bytes"),
                "{text}"
            );
            if !driver::has("cuMemcpyBatchAsync_v2") {
                let copy = format!("copy {wrong}, 256 bytes from 0x1000 to 0x");
                assert!(text.contains(&copy), "{text}");
            }
            assert_eq!(driver::copies_in_flight(), 0);
        }

        // A stream that cannot be waited for: the whole context is.
        driver::fail("cuStreamSynchronize", 0, 999);
        let error = machine.gather(None, &[0, 1, 2]).unwrap_err();
        let text = error.message();
        assert!(
            text.contains("cuStreamSynchronize: CUDA_ERROR_UNKNOWN (999)"),
            "{text}"
        );
        assert_eq!(driver::copies_in_flight(), 0);
        driver::reset();
        machine.gather(None, &[0, 1, 2]).unwrap();
        driver::lazy(false);
        machine.end();
    });
}

#[test]
fn threads_keep_their_own_contexts() {
    in_child("threads_keep_their_own_contexts", || {
        let machine = Machine::new();
        let others = [driver::context(0), driver::context(1), 0];
        for other in others {
            driver::set_current(other);
            let event = machine
                .device
                .record(Stream(machine.stream as u64))
                .unwrap();
            assert_eq!(driver::current(), other);
            machine.device.wait(&event).unwrap();
            assert_eq!(driver::current(), other);
            drop(event);
            assert_eq!(driver::current(), other);
            drop(machine.device.stage(100).unwrap());
            assert_eq!(driver::current(), other);
            machine.scatter(machine.stream(), &[0]).unwrap();
            assert_eq!(driver::current(), other);
            machine.gather(None, &[0]).unwrap();
            assert_eq!(driver::current(), other);

            // Numbers that mean a stream of the current context.
            for number in [0, 1, 2] {
                let stream = Stream(number);
                let results = [
                    machine.device.record(stream).map(drop),
                    machine.scatter(Some(stream), &[0]),
                ];
                for result in results {
                    if other == 0 {
                        result.unwrap();
                    } else {
                        let error = result.unwrap_err();
                        assert_eq!(error.kind(), Kind::InvalidArgument);
                        assert!(
                            error.message().contains("means one of the context"),
                            "{error}"
                        );
                    }
                }
                assert_eq!(driver::current(), other);
            }
        }
        // A stream of another context than the adopted one, with that context current.
        driver::set_current(others[0]);
        let strange = driver::stream(false);
        let error = machine.device.record(Stream(strange as u64)).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(
            error.message().contains("the engine's stream 0x"),
            "{error}"
        );
        driver::destroy_stream(strange);
        driver::set_current(machine.context);
        machine.end();
    });
}

/// Fails each call of the driver that an operation makes, one after the other, on a thread whose
/// own context is another one.
#[test]
fn every_call_may_fail() {
    in_children("every_call_may_fail", &VARIANTS, || {
        type Operation = fn(&Machine) -> Result<(), Error>;
        let operations: [Operation; 5] = [
            |machine| {
                let event = machine.device.record(Stream(machine.stream as u64))?;
                machine.device.wait(&event)
            },
            |machine| machine.device.stage(5000).map(drop),
            |machine| machine.gather(machine.stream(), &[0, 1, 2]),
            |machine| machine.scatter(None, &[3, 4]),
            |_| CudaDevice::adopt(Some(1)).map(drop),
        ];
        let (mut failures, mut kept) = (0, 0);
        for operation in operations {
            let mut nth = 1;
            loop {
                let machine = Machine::new();
                let own = driver::context(1);
                driver::lazy(true);
                driver::reset();
                driver::fail("", nth, 999);
                let result = operation(&machine);
                let failed = driver::failed();
                driver::reset();
                assert_eq!(driver::copies_in_flight(), 0, "{failed}");
                assert_eq!(driver::current(), own, "{failed}");
                let is_kept = failed.contains("Destroy") || failed == "cuMemHostUnregister";
                // What was asked twice.
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
                    failures += 1;
                }
                // It goes on afterwards.
                operation(&machine).unwrap();
                driver::lazy(false);
                driver::set_current(machine.context);
                kept += i64::from(is_kept);
                machine.end_with(kept);
                if failed.is_empty() {
                    break;
                }
                nth += 1;
            }
            assert!(nth > 2, "the operation calls nothing");
        }
        assert!(failures > 10, "{failures}");
    });
}

#[test]
fn memory_that_cannot_be_had_is_said_so() {
    in_child("memory_that_cannot_be_had_is_said_so", || {
        let machine = Machine::new();
        driver::fail("cuMemHostRegister_v2", 1, 2);
        let error = machine.device.stage(12_345).unwrap_err();
        assert_eq!(error.kind(), Kind::NoMemory);
        assert_eq!(
            error.message(),
            "CUDA device 0: pinning 12345 bytes of staging: cuMemHostRegister_v2: CUDA_ERROR_OUT_OF_MEMORY (2)"
        );
        driver::reset();
        machine.end();
    });
}

#[test]
fn another_device_or_no_context_is_refused() {
    in_child("another_device_or_no_context_is_refused", || {
        let machine = Machine::new();
        let error = CudaDevice::adopt(Some(1)).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(
            error.message().contains("device_ordinal = 1, but"),
            "{error}"
        );
        assert_eq!(CudaDevice::adopt(None).unwrap().name(), "CUDA device 0");
        let own = driver::context(1);
        assert_eq!(CudaDevice::adopt(None).unwrap().name(), "CUDA device 1");
        let elsewhere = driver::allocate(PAGE);

        let regions = |base: u64, slots: u64| {
            let mut layout = Layout::new(0);
            layout
                .add_group(Group {
                    id: 7,
                    window: 0,
                    number_format: "float16".to_owned(),
                    layout_tag: String::new(),
                    layer_ids: vec![0],
                })
                .unwrap();
            let size = PAGE as u64;
            let region = Region {
                base,
                size,
                stride: size,
                slots,
                reservation_base: 0,
            };
            layout.add_region(7, region).unwrap();
            machine.device.check_layout(&layout)
        };
        let cache = machine.cache;
        regions(cache, PAGES as u64).unwrap();
        let host = machine.staging.range().start;
        for (base, slots, text) in [
            (cache, 100, "is no memory that the driver knows"),
            (elsewhere, 1, "is memory of CUDA device 1"),
            (host, 1, "is memory of the host"),
            (
                (&raw const own).addr() as u64,
                1,
                "is no memory that the driver knows",
            ),
        ] {
            let error = regions(base, slots).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidArgument);
            assert!(error.message().contains(text), "{error}");
            assert!(error.message().contains("layer group 7"), "{error}");
        }
        assert_eq!(driver::current(), own);
        driver::free(elsewhere);
        driver::set_current(0);
        let error = CudaDevice::adopt(None).unwrap_err();
        assert_eq!(error.kind(), Kind::NoDevice);
        assert!(
            error.message().contains("no CUDA context is current"),
            "{error}"
        );
        driver::set_current(machine.context);
        machine.end();
    });
}

#[test]
fn a_context_that_is_gone_gives_errors() {
    in_child("a_context_that_is_gone_gives_errors", || {
        let machine = Machine::new();
        machine.gather(None, &[0]).unwrap();
        let event = machine
            .device
            .record(Stream(machine.stream as u64))
            .unwrap();
        driver::set_current(0);
        driver::destroy_context(machine.context);
        for result in [
            machine.device.wait(&event),
            machine.gather(None, &[0]),
            machine.device.stage(10).map(drop),
        ] {
            assert_eq!(result.unwrap_err().kind(), Kind::DeviceFailed);
        }
        assert_eq!(driver::current(), 0);
        // Cannot give anything back, and says so in the log.
        drop(event);
        drop(machine.staging);
        drop(machine.device);
    });
}

#[test]
fn streams_are_used_again() {
    in_child("streams_are_used_again", || {
        let machine = Machine::new();
        driver::reset();
        for _ in 0..5 {
            machine.gather(None, &[0]).unwrap();
        }
        assert_eq!(driver::calls("cuStreamCreate"), 1);
        thread::scope(|scope| {
            for page in 0..4 {
                let machine = &machine;
                scope.spawn(move || {
                    for _ in 0..50 {
                        machine.gather(machine.stream(), &[page]).unwrap();
                        machine.scatter(None, &[page]).unwrap();
                    }
                });
            }
        });
        assert!(driver::calls("cuStreamCreate") <= 4);
        machine.end();
    });
}

#[test]
fn the_cpu_does_not_reach_device_memory() {
    in_child("the_cpu_does_not_reach_device_memory", || {
        let machine = Machine::new();
        let null = std::fs::File::create(std::env::temp_dir().join("kvb-cuda-fault")).unwrap();
        let start = std::ptr::with_exposed_provenance(machine.cache as usize);
        // SAFETY: the system reads the range, or says that it cannot.
        let written = unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&null), start, 8) };
        let error = std::io::Error::last_os_error();
        assert_eq!((written, error.raw_os_error()), (-1, Some(libc::EFAULT)));
        machine.end();
    });
}

#[test]
fn a_machine_without_a_driver_is_told_so() {
    without_driver("a_machine_without_a_driver_is_told_so", || {
        for error in [
            CudaDevice::check_driver().unwrap_err(),
            CudaDevice::adopt(None).unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::NoDevice);
            assert!(
                error.message().contains("libcuda.so.1 cannot be loaded"),
                "{error}"
            );
        }
    });
}

#[test]
fn the_driver_is_loaded_for_a_cuda_device_alone() {
    in_child("the_driver_is_loaded_for_a_cuda_device_alone", || {
        let is_loaded = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.contains("libcuda.so")
        };
        kvbridge::device::check(DeviceChoice::Host).unwrap();
        let host = kvbridge::device::adopt(DeviceChoice::Host, &Layout::new(0)).unwrap();
        assert_eq!(host.name(), "host");
        assert!(!is_loaded());
        kvbridge::device::check(DeviceChoice::Cuda(None)).unwrap();
        assert!(is_loaded());
    });
}

#[test]
fn a_driver_that_lacks_functions_is_named_them() {
    let variants: [&[&str]; 1] = [&["WITHOUT_EVENTS"]];
    in_children(
        "a_driver_that_lacks_functions_is_named_them",
        &variants,
        || {
            let error = CudaDevice::check_driver().unwrap_err();
            assert_eq!(error.kind(), Kind::NoDevice);
            assert_eq!(
                error.message(),
                "the CUDA driver's library lacks cuStreamWaitEvent, cuEventRecord"
            );
        },
    );
}

#[test]
fn a_driver_that_cannot_be_used_now_may_be_later() {
    in_child("a_driver_that_cannot_be_used_now_may_be_later", || {
        driver::fail("cuInit", 0, 100);
        let error = CudaDevice::check_driver().unwrap_err();
        assert_eq!(error.kind(), Kind::NoDevice);
        assert_eq!(error.message(), "cuInit: CUDA_ERROR_NO_DEVICE (100)");
        driver::fail("cuInit", 0, 12_345);
        let error = CudaDevice::check_driver().unwrap_err();
        assert_eq!(error.message(), "cuInit: an unknown code (12345)");
        driver::reset();
        driver::set_version(11_080);
        let error = CudaDevice::check_driver().unwrap_err();
        assert_eq!(error.kind(), Kind::NoDevice);
        assert!(
            error.message().contains("CUDA 11.8; 12.0 or newer"),
            "{error}"
        );
        driver::set_version(12_000);
        CudaDevice::check_driver().unwrap();
    });
}
