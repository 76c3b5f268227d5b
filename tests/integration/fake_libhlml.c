/* A libhlml.so for habana-pyhlml to load: it says of each card what a file says now. Signatures from Habana's hlml.h.
   FAKE_HLML names the file: a line a card, "PCI MINOR MODULE TOTAL USED RC" (RC: what its memory call returns; 0 is
   success, -1 hangs), after a first line with what hlml_init returns. A card's handle is its line's number. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *hlml_device_t;
typedef struct { unsigned long long free, total, used; } hlml_memory_t;
typedef struct { char speed[10], width[10], max_speed[10], max_width[10]; } hlml_pci_cap_t;
typedef struct {
  unsigned int bus;
  char bus_id[19];
  unsigned int device, domain, pci_device_id;
  hlml_pci_cap_t caps;
  unsigned int pci_rev, pci_subsys_id;
} hlml_pci_info_t;
typedef struct { char pci[19]; unsigned minor, module; unsigned long long total, used; int rc; } card_t;

enum { NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, MOST = 16 };

static int cards(card_t *out, int *init) {
  FILE *file = fopen(getenv("FAKE_HLML"), "r");
  int count = 0;
  *init = DRIVER_NOT_LOADED;
  if (!file) return 0;
  if (fscanf(file, "%d", init) == 1)
    while (count < MOST && fscanf(file, "%18s %u %u %llu %llu %d", out[count].pci, &out[count].minor,
                                  &out[count].module, &out[count].total, &out[count].used, &out[count].rc) == 6)
      count++;
  fclose(file);
  return count;
}

static int card(hlml_device_t device, card_t *out) {
  card_t all[MOST];
  int init, count = cards(all, &init);
  size_t at = (size_t)device - 1;
  if (at >= (size_t)count) return NOT_FOUND;
  *out = all[at];
  return 0;
}

int hlml_init(void) { card_t all[MOST]; int init; cards(all, &init); return init; }
int hlml_shutdown(void) { return 0; }

int hlml_device_get_count(unsigned int *count) {
  card_t all[MOST];
  int init;
  *count = cards(all, &init);
  return init;
}

int hlml_device_get_handle_by_index(unsigned int index, hlml_device_t *device) {
  *device = (void *)(size_t)(index + 1);
  return 0;
}

int hlml_device_get_pci_info(hlml_device_t device, hlml_pci_info_t *info) {
  card_t one;
  int rc = card(device, &one);
  if (rc) return rc;
  memset(info, 0, sizeof *info);
  memcpy(info->bus_id, one.pci, sizeof info->bus_id);
  return 0;
}

int hlml_device_get_memory_info(hlml_device_t device, hlml_memory_t *memory) {
  card_t one;
  int rc = card(device, &one);
  while (!rc && one.rc == -1) { /* a call that hangs until the file says otherwise */
    usleep(20000);
    rc = card(device, &one);
  }
  if (rc || (rc = one.rc)) return rc;
  memory->total = one.total;
  memory->used = one.used;
  memory->free = one.total - one.used;
  return 0;
}

int hlml_device_get_module_id(hlml_device_t device, unsigned int *module) {
  card_t one;
  int rc = card(device, &one);
  *module = one.module;
  return rc;
}

int hlml_device_get_minor_number(hlml_device_t device, unsigned int *minor) {
  card_t one;
  int rc = card(device, &one);
  *minor = one.minor;
  return rc;
}

int hlml_device_get_uuid(hlml_device_t device, char *text, unsigned int size) {
  card_t one;
  int rc = card(device, &one);
  snprintf(text, size, "01P0-HL2080A0-15-TNPS34-20-%02u", rc ? 0 : one.module);
  return rc;
}

int hlml_device_get_name(hlml_device_t device, char *text, unsigned int size) {
  snprintf(text, size, "HL-225");
  return 0;
}
