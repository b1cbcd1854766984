/* The whole kernel, for the instruction set that the including file chooses. */

#include "blocks.h"
#include "characters.h"
#include "folding.h"
#include "shingling.h"
#include "collecting.h"

const Kernel KERNEL = {KERNEL_NAME, unstable, layout, characters, fold, shingles, sign};
