/* The kernel for any processor. */

#include "kernel.h"

#define KERNEL kernel_portable
#define KERNEL_NAME "portable"
#include "compilation.h"
