//! libibverbs, loaded when it is first asked for: programs start without it.

use crate::VerbsError;
use crate::sys::functions as f;
use std::sync::OnceLock;

/// The name with the version of its interface.
const NAME: &str = "libibverbs.so.1";

macro_rules! functions {
    ($($field:ident: $kind:ty = $symbol:literal,)*) => {
        /// Its functions.
        pub struct Library {
            $(pub $field: $kind,)*
        }

        impl Library {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: it is the system's library. It runs no code of its own when it is
                // loaded, and is never unloaded.
                let library = unsafe { libloading::Library::new(NAME) }?;
                let library = Box::leak(Box::new(library));
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is that of `infiniband/verbs.h`.
                        *unsafe { library.get::<$kind>($symbol) }?
                    },)*
                })
            }
        }
    };
}

functions! {
    get_device_list: f::GetDeviceList = b"ibv_get_device_list",
    free_device_list: f::FreeDeviceList = b"ibv_free_device_list",
    get_device_name: f::GetDeviceName = b"ibv_get_device_name",
    open_device: f::OpenDevice = b"ibv_open_device",
    close_device: f::CloseDevice = b"ibv_close_device",
    query_port: f::QueryPort = b"ibv_query_port",
    query_gid_table: f::QueryGidTable = b"_ibv_query_gid_table",
    alloc_pd: f::AllocPd = b"ibv_alloc_pd",
    dealloc_pd: f::DeallocPd = b"ibv_dealloc_pd",
    reg_mr: f::RegMr = b"ibv_reg_mr",
    dereg_mr: f::DeregMr = b"ibv_dereg_mr",
    create_comp_channel: f::CreateCompChannel = b"ibv_create_comp_channel",
    destroy_comp_channel: f::DestroyCompChannel = b"ibv_destroy_comp_channel",
    create_cq: f::CreateCq = b"ibv_create_cq",
    destroy_cq: f::DestroyCq = b"ibv_destroy_cq",
    get_cq_event: f::GetCqEvent = b"ibv_get_cq_event",
    ack_cq_events: f::AckCqEvents = b"ibv_ack_cq_events",
    create_qp: f::CreateQp = b"ibv_create_qp",
    modify_qp: f::ModifyQp = b"ibv_modify_qp",
    destroy_qp: f::DestroyQp = b"ibv_destroy_qp",
    wc_status_str: f::WcStatusStr = b"ibv_wc_status_str",
}

/// The library.
pub fn library() -> Result<&'static Library, VerbsError> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(|| Library::load().map_err(|error| error.to_string()));
    loaded
        .as_ref()
        .map_err(|why| VerbsError::NoLibrary(why.clone()))
}
