// Reads every frame of a ring, and says how large it is.  What it needs of gpuring.h is declared by
// hand; bindgen makes such declarations for all of it.
//
//     rustc watch.rs -o frames -C link-args="$(python -m gpuring.config --libs)"
//     ./frames cam0
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::null;

const FOREVER: i64 = -1;
const END_OF_STREAM: c_int = 8;

#[repr(C)]
struct Error {
    status: c_int,
    sys_errno: c_int,
    device_status: c_int,
    text: [c_char; 512],
}

#[repr(C)]
struct AttachOptions {
    size: usize,
    timeout_ns: i64,
    owner: i64,
}

// The beginning of gpuring_slot.  The library fills no more than its size.
#[repr(C)]
struct Slot {
    size: usize,
    seq: u64,
    number: u32,
    data: *mut c_void,
}

#[repr(C)]
struct Field {
    size: usize,
    name: *const c_char,
    dtype: *const c_char,
    offset: u64,
    itemsize: u64,
    nbytes: u64,
}

extern "C" {
    fn gpuring_attach(
        name: *const c_char, options: *const AttachOptions, ring: *mut *mut c_void, error: *mut Error,
    ) -> c_int;
    fn gpuring_field_at(ring: *const c_void, number: u32, field: *mut Field) -> c_int;
    fn gpuring_join_consumer(
        ring: *mut c_void, options: *const c_void, consumer: *mut *mut c_void, error: *mut Error,
    ) -> c_int;
    fn gpuring_acquire(consumer: *mut c_void, timeout_ns: i64, slot: *mut Slot, error: *mut Error) -> c_int;
    fn gpuring_release(consumer: *mut c_void, slot: *mut Slot, error: *mut Error) -> c_int;
    fn gpuring_close_consumer(consumer: *mut c_void, error: *mut Error) -> c_int;
    fn gpuring_detach(ring: *mut c_void, error: *mut Error) -> c_int;
}

fn main() -> Result<(), String> {
    let name = CString::new(std::env::args().nth(1).unwrap_or("cam0".into())).unwrap();
    let options = AttachOptions { size: std::mem::size_of::<AttachOptions>(), timeout_ns: 10_000_000_000, owner: -1 };
    let mut error: Error = unsafe { std::mem::zeroed() };
    let (mut ring, mut frames) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut image = Field { size: std::mem::size_of::<Field>(), name: null(), dtype: null(), offset: 0, itemsize: 0, nbytes: 0 };
    let mut slot = Slot { size: std::mem::size_of::<Slot>(), seq: 0, number: 0, data: std::ptr::null_mut() };
    unsafe {
        let told = |error: &Error| CStr::from_ptr(error.text.as_ptr()).to_string_lossy().into_owned();
        if gpuring_attach(name.as_ptr(), &options, &mut ring, &mut error) != 0
            || gpuring_join_consumer(ring, null(), &mut frames, &mut error) != 0
        {
            return Err(told(&error));
        }
        gpuring_field_at(ring, 0, &mut image);
        while gpuring_acquire(frames, FOREVER, &mut slot, &mut error) == 0 {
            let at = (slot.data as *const u8).add(image.offset as usize);
            let pixels = std::slice::from_raw_parts(at, image.nbytes as usize);
            println!("{} {}", slot.seq, pixels.iter().map(|&each| each as u64).sum::<u64>());
            gpuring_release(frames, &mut slot, &mut error);
        }
        if error.status != END_OF_STREAM {
            return Err(told(&error));
        }
        gpuring_close_consumer(frames, &mut error);
        gpuring_detach(ring, &mut error);
    }
    Ok(())
}
